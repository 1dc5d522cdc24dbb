"""Decides which engine a run computes with, before anything is read: every node must have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speedo.engines.make import (
    CAFFE_REMEDY,
    TORCH_REMEDY,
    EngineChoice,
    chosen_engine,
    is_installed,
    prepare_to_read,
)
from speedo.errors import ConfigError, EngineError
from speedo.run.config.combinations import OF_AN_ENGINE, found_in
from speedo.run.config.run_config import RunConfig, make_config
from speedo.system.bounds import EngineName


def decided_engine(config: RunConfig, note: Callable[[str], None]) -> EngineName:
    """The engine of this configuration. Raises `ConfigError`, or `EngineError` if that engine is not here."""
    engine, line = chosen_engine(config.engine)
    if line:
        note(line)
    decided = config.model_copy(update={"engine": engine})
    if problems := found_in(OF_AN_ENGINE, decided):
        raise ConfigError(problems)
    require_engine(decided_choice(decided))
    return engine


def decided_choice(config: RunConfig) -> EngineChoice:
    """What a run computes with, of which `decided_engine` has decided the engine; until then Caffe."""
    micro_batch = config.micro_batch or ""
    return EngineChoice(config.engine or "caffe", config.device, config.precision, micro_batch)


def choice_of(
    note: Callable[[str], None], engine: str | None = None, **options: Any
) -> EngineChoice:
    """As `decided_engine`, for a command that is no run: from its options `engine`, `device`, `precision`.

    Those that are None were not given. This process reads Caffe's files for that engine.
    """
    config = make_config({"engine": engine, **options})
    choice = decided_choice(config.model_copy(update={"engine": decided_engine(config, note)}))
    prepare_to_read(choice.engine)
    return choice


def require_engine(choice: EngineChoice) -> None:
    """Raises `EngineError` if the engine's package is not installed here; its import may still fail."""
    if is_installed(choice.engine):
        return
    if choice.engine == "torch":
        other = ", or train with --engine caffe" if is_installed("caffe") else ""
        raise EngineError(
            f"the engine is torch, but PyTorch is not installed here: {TORCH_REMEDY}{other}"
        )
    other = ", or train with --engine torch" if is_installed("torch") else ""
    raise EngineError(
        f"the engine is caffe, but pycaffe is not installed here: {CAFFE_REMEDY}{other}"
    )
