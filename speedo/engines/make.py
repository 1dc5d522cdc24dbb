"""Chooses and makes the engine of a process: pycaffe or PyTorch. A process imports only the one that it uses."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from speedo.engines.caffe_import import prepare_environment
from speedo.errors import ConfigError, EngineError
from speedo.system.bounds import EngineName
from speedo.system.remedies import install_extra, install_pycaffe

if TYPE_CHECKING:  # every command imports this file; a mistake in its options is reported at once
    from speedo.engines.base import ModelEngine, RateSchedule

Precision = Literal["float32", "bfloat16"]

ENGINE_VARIABLE: Final = "SPEEDO_ENGINE"
_MODULES: Final[dict[EngineName, str]] = {"caffe": "caffe", "torch": "torch"}
TORCH_REMEDY: Final = f"install PyTorch: {install_extra('torch')}"
CAFFE_REMEDY: Final = install_pycaffe()


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What computes, on which device and how precisely, as the options say. Only PyTorch reads more than `engine`.

    `device` is `auto`, `cpu`, `cuda` or `cuda:N`; the methods make it one device of this machine, or `meta`, PyTorch's
    for shapes without values. `micro_batch` are the records that go through the net at a time, `auto`, or nothing for a
    whole batch. So many workers of the host are `sharing` the device.
    """

    engine: EngineName = "caffe"
    device: str = "auto"
    precision: Precision = "float32"
    micro_batch: str = ""
    sharing: int = 1

    @property
    def name(self) -> str:
        """What people call it."""
        return "Caffe" if self.engine == "caffe" else "PyTorch"

    def of_worker(self, number: int, workers: int = 1) -> EngineChoice:
        """That of this worker, from 0 on, of so many of the host. Raises `EngineError` for a device that is missing."""
        if self.engine == "caffe":
            return self
        from speedo.engines.pytorch.devices import device_for

        devices = [device_for(self.device, one) for one in {*range(workers), number}]
        own = device_for(self.device, number)
        return replace(self, device=own, sharing=devices.count(own))

    def of_tester(self, number: int) -> EngineChoice:
        """That of this tester, from 0 on: the CPU where the device is not here, and always float32.

        Testers take the devices from the last one on, workers from the first.
        """
        if self.engine == "caffe":
            return self
        from speedo.engines.pytorch.devices import device_of_tester

        return replace(self, device=device_of_tester(self.device, number), precision="float32")

    def on_cpu(self) -> EngineChoice:
        """The same on the CPU in float32: for the master, and for building a net to look at it."""
        return replace(self, device="cpu", precision="float32")

    def for_shapes(self) -> EngineChoice:
        """The same for looking at the shapes of a net, which PyTorch then builds without memory for its parameters."""
        if self.engine == "caffe":
            return self
        from speedo.engines.pytorch.devices import META

        return replace(self, device=META, precision="float32")


CAFFE: Final = EngineChoice()


def is_installed(engine: EngineName) -> bool:
    """Whether this interpreter finds the engine's package; nothing is imported."""
    try:
        found = importlib.util.find_spec(_MODULES[engine])
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None  # a folder of that name is no package


def chosen_engine(given: EngineName | None) -> tuple[EngineName, str]:
    """The engine that was given, that of the environment, or the one that is installed; and a line to print, or none.

    Raises `ConfigError` for an engine of the environment that there is not, `EngineError` where none is installed.
    """
    if given is not None:
        return given, ""
    named = os.environ.get(ENGINE_VARIABLE, "")
    for engine in get_args(EngineName):
        if named == engine:
            return engine, ""
    if named:
        raise ConfigError(f"{ENGINE_VARIABLE} is {named!a}; use one of 'caffe' or 'torch'")
    if is_installed("caffe"):
        return "caffe", ""
    if is_installed("torch"):
        return "torch", "pycaffe is not installed here: the engine is torch (--engine torch)"
    raise EngineError(
        f"neither pycaffe nor PyTorch is installed here: {CAFFE_REMEDY}; or {TORCH_REMEDY}"
    )


def prepare_to_read(engine: EngineName) -> None:
    """Have this process read Caffe's files for that engine; with torch it never imports pycaffe."""
    from speedo.engines.schema import use_own_schema

    use_own_schema(engine == "torch")


def prepare_process(choice: EngineChoice, threads: int | None = 1) -> None:
    """Load what the engine needs, before this process computes anything. Raises `EngineError` if it is not here.

    `threads` are those of the BLAS; None leaves the user's own setting.
    """
    prepare_environment(threads)
    prepare_to_read(choice.engine)
    if choice.engine == "caffe":
        from speedo.engines.caffe_import import load_caffe

        load_caffe()
    else:
        from speedo.engines.pytorch.devices import load_torch

        load_torch()


def make_engine(
    choice: EngineChoice,
    solver_text: str,
    *,
    lr_policy: RateSchedule,
    rank: int = 0,
    count: int = 1,
    folder: Path | None = None,
    python_layers: Collection[str] = (),
    scratch: Path | None = None,
    threads: int | None = 1,
) -> ModelEngine:
    """The engine for the text of a SolverParameter with inline nets and absolute paths. Raises `EngineError`.

    Where `choice` has no one device, it is that of the host's first worker. The rest is as for
    `speedo.engines.pycaffe.PycaffeEngine`.
    """
    if choice.engine == "caffe":
        from speedo.engines.pycaffe import PycaffeEngine

        return PycaffeEngine(
            solver_text,
            lr_policy=lr_policy,
            rank=rank,
            count=count,
            folder=folder,
            python_layers=python_layers,
            scratch=scratch,
            threads=threads,
        )
    prepare_process(choice, threads)
    from speedo.engines.pytorch.engine import PytorchEngine

    return PytorchEngine(
        solver_text,
        lr_policy=lr_policy,
        rank=rank,
        count=count,
        folder=folder,
        python_layers=python_layers,
        scratch=scratch,
        threads=1 if threads is None else threads,
        device=choice.of_worker(0).device,
        precision=choice.precision,
        micro_batch=choice.micro_batch,
        sharing=choice.sharing,
    )


def use_threads(choice: EngineChoice, count: int) -> int:
    """Have the BLAS of this process compute with this many threads; returns how many it takes."""
    if choice.engine == "caffe":
        from speedo.engines import openblas_kernels

        return openblas_kernels.use_threads(count) or count
    return count  # PytorchEngine has set them


def let_others_run(choice: EngineChoice, value: bool) -> None:
    """Whether other threads of this process run while the engine computes; with PyTorch they always do."""
    if choice.engine == "caffe":
        from speedo.engines import caffe_import

        caffe_import.let_others_run(value)
