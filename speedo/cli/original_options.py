"""Translates the options of the original SpeeDO (Zheng et al. 2015) into ours.

The original chose its strategy by a flag: `--sync`, `--maxAdvance N`, `--weedout N` (documented as `--drop N`, which
did not exist), `--movingRate A`. Here the same flags choose the mode, unless `--mode` is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from speedo.errors import ConfigError
from speedo.sgd_modes.registry import PLAIN

_RENAMED: Final = {
    "--maxIter": "--max-iter",
    "--test": "--test-interval",
    "--train": "--local-steps",
    "--weightDecay": "--weight-decay",
    "--snapshot": "--weights",
    "--worker": "--workers",
}
# The strategies in the order in which the original checked them, with the option of ours that each sets.
_STRATEGIES: Final = {
    "--weedout": "window",
    "--drop": "window",
    "--maxAdvance": "max_advance",
    "--sync": "",
    "--movingRate": "moving_rate",  # with another strategy it is an option of that one
}
_NO_MORE: Final = {
    "--startIter": "use --resume RUN, which continues at the run's own iteration, or --resume FILE.solverstate",
    "--hybrid": "use --mode hybrid with a --phase for each strategy, as in --phase sync:500 --phase easgd:1000",
    "--CPUDBActor": "the master needs no GPU; leave it out",
    "--doublePrecision": "weights are float32; leave it out",
    "--debug": "the loss is shown during the run; leave it out",
    "--keyName": "each run has its own name in Redis; leave it out",
    "--suffix": "each worker has its own keys; leave it out",
    "--baseDir": "use --run-dir DIR",
    "--start": "workers divide the records; --data-share offset begins at k/n of them; leave it out",
    "--sleepAfterFinish": "leave it out",
}
_ACTOR: Final = re.compile(r"akka\.tcp://[^@/]+@([^/]+)(/.*)?")

NAMES: Final = frozenset(
    (*_RENAMED, *_STRATEGIES, *_NO_MORE, "--factor", "--gradientOnly", "--solver")
)  # besides --host and --master of a worker, which are recognised by their values


@dataclass
class _Translation:
    """The arguments so far, notes on them, and the original's strategies among them."""

    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)

    def add(self, theirs: str, *ours: str) -> None:
        self.words += ours
        self.notes.append(f"{theirs} is now {' '.join(ours)}")


def for_a_run(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments for those of `speedo train` or `speedo master`, and a note for each that was translated.

    Raises `ConfigError` for options of the original that have no counterpart.
    """
    made, positional = _Translation(), list[str]()

    def other(name: str, value: Callable[[], str]) -> bool:
        if name in _STRATEGIES:
            made.strategies.append(name)
            if option := _STRATEGIES[name]:
                made.add(name, f"--{option.replace('_', '-')}", value())
        elif name == "--gradientOnly":
            made.add(name, "--server-gradient")
        elif name == "--factor":
            made.add(name, "--delta-scale", _inverse(value()))
        elif name == "--solver":
            positional.append(value())
            made.notes.append("--solver FILE is now FILE")
        else:
            return False
        return True

    rest = _translate(words, made, other)
    if made.strategies and not any(word.split("=")[0] == "--mode" for word in words):
        mode = _mode_of(min(made.strategies, key=list(_STRATEGIES).index))
        made.words += ["--mode", mode]
        made.notes.append(f"the mode of this strategy is --mode {mode}")
    return [*made.words, *positional, *rest], made.notes


def for_a_worker(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments for those of `speedo worker`, and a note for each that was translated. Raises `ConfigError`."""
    made = _Translation()

    def other(name: str, value: Callable[[], str]) -> bool:
        if name == "--host":
            value()
            made.notes.append(
                "--host is not needed here: workers use the address from which they reach the master"
            )
        elif name == "--master":
            given = value()
            actor = _ACTOR.fullmatch(given)
            if actor is None:
                made.words += [name, given]
            else:
                made.add(f"--master {given}", name, actor[1])
        else:
            return False
        return True

    rest = _translate(words, made, other)
    return [*made.words, *rest], made.notes


def _translate(
    words: Sequence[str], made: _Translation, other: Callable[[str, Callable[[], str]], bool]
) -> list[str]:
    """Fill `made` with what comes before `--`; returns the rest."""
    left = list(words)
    while left and left[0] != "--":
        word = left.pop(0)
        name, equals, joined = word.partition("=")

        def value(name: str = name, equals: str = equals, joined: str = joined) -> str:
            if equals:
                return joined
            if not left:
                raise ConfigError(f"{name} wants a value")
            return left.pop(0)

        if name in _RENAMED:
            made.add(name, _RENAMED[name], value())
        elif name == "--device":
            given = value()
            if given.lstrip("-").isdecimal():  # Caffe's number of a GPU; -1 was the CPU
                ours = "cpu" if given.startswith("-") else f"cuda:{given}"
                made.add(f"--device {given}", name, ours)
            else:
                made.words += [name, given]
        elif name in _NO_MORE:
            raise ConfigError(
                f"{name} of the original SpeeDO does not exist here: {_NO_MORE[name]}"
            )
        elif not other(name, value):
            made.words.append(word)
    return left


def _mode_of(strategy: str) -> str:
    """The mode with the strategy's option: its own, or that of its default merge rule. --sync: the mode with rounds."""
    option = _STRATEGIES[strategy]
    return next(
        name
        for name, mode in PLAIN.items()
        if (option in (*mode.own, mode.rules[0].option) if option else mode.rounds)
    )


def _inverse(factor: str) -> str:
    try:
        return f"{1 / float(factor):g}"
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"--factor is {factor!r}: use a number above 0, or --delta-scale"
        ) from None
