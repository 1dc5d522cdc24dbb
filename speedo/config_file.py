"""The written forms of options: a YAML file, a phase on the command line, a compression."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from speedo.errors import ConfigError

LARGEST_FRACTION: Final = 0.5  # a value that top-k sends takes 6 bytes, of 4 in the vector


def parse_phase(text: str) -> dict[str, Any]:
    """`easgd:1000,moving_rate=0.3,local_steps=10` as the mapping that a YAML file would hold."""
    head, *options = text.split(",")
    mode, colon, iterations = head.partition(":")
    if not colon or not iterations.strip().isdigit():
        raise ConfigError(
            f"phase {text!r} is not of the form MODE:ITERATIONS[,OPTION=VALUE...]; "
            "for example --phase sync:500 or --phase easgd:1000,moving_rate=0.3"
        )
    phase: dict[str, Any] = {"mode": mode.strip(), "iterations": int(iterations)}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(
                f"phase {text!r}: {option!r} is not of the form OPTION=VALUE; for example moving_rate=0.3"
            )
        phase[name.strip().replace("-", "_")] = value.strip()
    return phase


def parse_compression(text: str) -> tuple[str, float]:
    """The name in `none`, `bfloat16`, `int8` or `topk:F`, and the fraction F of the values that travel."""
    name, colon, number = text.partition(":")
    if text in ("none", "bfloat16", "int8"):
        return text, 1.0
    try:
        fraction = float(number) if name == "topk" and colon else 0.0
    except ValueError:
        fraction = 0.0
    if not 0.0 < fraction <= LARGEST_FRACTION:
        raise ConfigError(
            f"compress is {text!r}; use none, bfloat16, int8, or topk:F with a fraction F above 0 and up to "
            f"{LARGEST_FRACTION}, as in topk:0.01"
        )
    return name, fraction


def read_options(file: Path) -> dict[str, Any]:
    """The options in this file; raises `ConfigError` with its line where it is not YAML."""
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the configuration {file} cannot be read ({error.strerror}); correct --config"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise ConfigError(
            f"the configuration {file}{line} is not YAML: {getattr(error, 'problem', None) or error}; "
            "write one 'option: value' per line"
        ) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"the configuration {file} holds no options; write one 'option: value' per line"
        )
    return {str(name).replace("-", "_"): value for name, value in loaded.items()}
