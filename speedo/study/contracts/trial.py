"""The trial of a run's mode and rule that are not of the package, in the simulator, before anything is started."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import numpy as np

from speedo.errors import ConfigError, SpeedoError
from speedo.exchange.vector import Vector
from speedo.sgd_modes.options import ModeOptions, RunOptions
from speedo.sgd_modes.registry import is_outside, parts_outside, plain_strategy, rule_class
from speedo.study.contracts.rule_contract import check_rule
from speedo.study.contracts.schedules import SCHEDULES, schedule, try_schedule
from speedo.study.contracts.watched_strategy import BrokenStrategyError
from speedo.system.daemon_thread import within

FEWEST: Final = 6  # schedules
TRIAL_S: Final = 1.5
PATIENCE_S: Final = 30.0  # for one that does not come back from a decision


def require_sound(config: RunOptions) -> None:
    """Raises `ConfigError`, with the schedule that shows it, for a mode or rule of the user's that is broken."""
    for part in parts_outside(config):
        what = f"mode {part.mode}" + (f" with rule {part.rule}" if part.rule else "")
        try:
            within(PATIENCE_S, partial(_try, part))
        except OSError:
            raise ConfigError(
                f"{what}: its trial has not ended after {PATIENCE_S:.0f} s: a decision or a merge never ends"
            ) from None
        except BrokenStrategyError as error:
            raise ConfigError(f"{what} cannot be used: in the simulator, {error}") from None
        except SpeedoError:
            raise
        except Exception as error:
            raise ConfigError(f"{what} cannot be used: {type(error).__name__}: {error}") from error


def _try(options: ModeOptions) -> None:
    end = time.monotonic() + TRIAL_S
    if is_outside(rule_class(options)):
        try:
            check_rule(plain_strategy(options, None).rule)
        except AssertionError as error:
            raise ConfigError(str(error)) from None
    for seed in range(SCHEDULES):
        if seed >= FEWEST and time.monotonic() > end:
            break
        try_schedule(plain_strategy(options, _small_step), schedule(seed))


def _small_step(gradient: Vector, center: Vector, iteration: int) -> None:
    center -= np.float32(0.01) * gradient
