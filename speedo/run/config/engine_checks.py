"""Checks of the options that say what computes, on which device and how precisely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from speedo.engines.make import Precision
from speedo.errors import ConfigError
from speedo.system.bounds import EngineName


class Computes(Protocol):
    """The options of a run that are looked at here."""

    @property
    def engine(self) -> EngineName | None: ...
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def micro_batch(self) -> str | None: ...


def problems_of_engine(config: Computes) -> list[str]:
    """Options that the engine does not have; none where the engine is not chosen yet."""
    found = []
    if config.engine == "caffe" and config.device.startswith("cuda"):
        found.append(
            f"device is {config.device}, but with the engine caffe the solver's solver_mode decides about GPUs; leave "
            "device out, or use --engine torch"
        )
    if config.engine == "caffe" and config.precision != "float32":
        found.append(
            f"precision is {config.precision}, but Caffe computes with float32 alone; leave precision out, or use "
            "--engine torch"
        )
    if config.engine == "caffe" and config.micro_batch:
        found.append(
            "micro_batch is for the engine torch; leave it out and set iter_size in the solver, or use --engine torch"
        )
    return found


def with_device(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with `device: cpu` for the `cpu: true` of earlier versions. Raises `ConfigError`."""
    rest = dict(options)
    if rest.get("cpu") not in (True, False):
        return rest
    if rest.pop("cpu"):
        if (device := rest.get("device", "auto")) not in ("auto", "cpu"):
            raise ConfigError(
                f"cpu is given together with device {device}; leave one of the two out"
            )
        rest["device"] = "cpu"
    return rest


def without_engine(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run that another engine shall continue: only the device cpu is one of both engines."""
    rest = {name: value for name, value in options.items() if name != "precision"}
    if rest.get("device") != "cpu":
        rest.pop("device", None)
    return rest
