"""Checks of the options that say what computes, on which device and how precisely."""

from __future__ import annotations

from typing import Protocol

from speedo.engines.make import EngineName, Precision


class Computes(Protocol):
    """The options of a run that are looked at here."""

    @property
    def engine(self) -> EngineName | None: ...
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def cpu(self) -> bool: ...


def problems_of_engine(config: Computes) -> list[str]:
    """Options that the engine does not have; none where the engine is not chosen yet."""
    found = []
    if config.engine == "caffe" and config.device != "auto":
        found.append(
            f"device is {config.device}, but with the engine caffe the solver's solver_mode decides where Caffe "
            "computes; leave device out, or use --engine torch"
        )
    if config.engine == "caffe" and config.precision != "float32":
        found.append(
            f"precision is {config.precision}, but Caffe computes with float32 alone; leave precision out, or use "
            "--engine torch"
        )
    if config.engine == "torch" and config.cpu and config.device.startswith("cuda"):
        found.append(f"cpu is given together with device {config.device}; leave one of the two out")
    return found
