"""Checks of single options: each answers the problems with a value, a sentence each with the remedy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from caffenets.files import check_path
from speedo.data.remote.uris import SCHEMES, problem_with, uri_of
from speedo.errors import ConfigError
from speedo.system.bounds import Bound, said


def check_place(name: str, value: Path | str) -> list[str]:
    """A path, or a URI that is taken."""
    if (uri := uri_of(value)) is not None:
        problem = problem_with(uri)
        return [f"{name} is {uri}, which {problem}"] if problem else []
    return check_path(name, Path(value))


def check_copy_to(name: str, value: str) -> list[str]:
    """A URI of a store."""
    if uri_of(value) is None:
        return [
            f"{name} is {value!r}, which is no URI of a store; give one, as in s3://bucket/run (known are "
            + ", ".join(SCHEMES)
            + ")"
        ]
    return check_place(name, value)


def check_weights(name: str, value: Path) -> list[str]:
    """Files of weights, or URIs that are taken."""
    return [problem for one in weights_in(value) for problem in _check_file(name, one)]


def _check_file(name: str, value: Path) -> list[str]:
    if uri_of(value) is not None:
        return check_place(name, value)
    found = check_path(name, value)
    if "\0" not in str(value) and not os.path.isfile(value):
        found.append(
            f"{name} names {value}, which is not a file; give a .caffemodel, or for a script an .npz of a run or a "
            "state dict of PyTorch's (.pt)"
        )
    elif value.name.removesuffix(".h5").endswith(".solverstate"):
        found.append(
            f"{name} names {value}, a snapshot; give it to --resume, or the .caffemodel beside it here"
        )
    return found


def weights_in(value: Path | None) -> tuple[Path, ...]:
    """The files between commas, as in Caffe's command; one whose name has commas is one."""
    if value is None or "," not in str(value) or ("\0" not in str(value) and os.path.isfile(value)):
        return () if value is None else (value,)
    return tuple(Path(name.strip()) for name in str(value).split(",") if name.strip())


def checked_by(parse: Callable[[str], object]) -> Bound:
    """A text that this function can parse."""

    def check(name: str, value: str) -> list[str]:
        try:
            parse(value)
        except ConfigError as error:
            return list(error.problems)
        return []

    return check


def check_ray(name: str, value: str) -> list[str]:
    """The address of a Ray cluster."""
    if "://" in value:
        remedy = (
            "use HOST:PORT or auto on a machine of the cluster; from others use `ray job submit`"
        )
        return [f"{name} is {said(value)}, which only Ray's clients understand; {remedy}"]
    host, _, port = value.rpartition(":")
    if value == "auto" or (host and port.isdecimal() and int(port) <= 65535):
        return []
    return [f"{name} is {said(value)}; use HOST:PORT, or auto"]


def check_device(name: str, value: str) -> list[str]:
    """A kind of devices, or one of them."""
    if re.fullmatch(r"auto|cpu|cuda|cuda:\d{1,3}", value, re.ASCII):
        return []
    return [f"{name} is {said(value)}; use auto, cpu, cuda, or one of its devices as in cuda:0"]


def check_modules(name: str, value: str) -> list[str]:
    """Names of Python modules."""
    return [
        f"{name} names {module!r}, which is not a module; use names as in layers.scale,others"
        for module in names_in(value)
        if not all(part.isidentifier() for part in module.split("."))
    ]


def names_in(text: str) -> tuple[str, ...]:
    """The names between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
