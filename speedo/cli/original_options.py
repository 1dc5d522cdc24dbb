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

_RENAMED: Final = {
    "--maxIter": "--max-iter",
    "--test": "--test-interval",
    "--train": "--local-steps",
    "--weightDecay": "--weight-decay",
    "--snapshot": "--weights",
    "--worker": "--workers",
}
_MODES: Final = {
    "--maxAdvance": ("partial", "--max-advance"),
    "--weedout": ("weed-out", "--window"),
    "--drop": ("weed-out", "--window"),
    "--movingRate": ("easgd", "--moving-rate"),  # the last: with another strategy it is that one's
}
_FLAGS: Final = {"--sync": ("sync", ""), "--gradientOnly": ("", "--server-gradient")}
_NO_MORE: Final = {
    "--startIter": "use --resume RUN, which goes on at the run's own iteration, or --resume FILE.solverstate",
    "--hybrid": "use --mode hybrid with a --phase for each strategy, as in --phase sync:500 --phase easgd:1000",
    "--device": "there is no choice of device; the solver's solver_mode and --cpu decide between GPU and CPU",
    "--CPUDBActor": "the master needs no GPU; leave it out",
    "--doublePrecision": "weights are float32; leave it out",
    "--debug": "the loss is shown as the run goes on; leave it out",
    "--keyName": "each run has a name of its own in Redis; leave it out",
    "--suffix": "each worker has keys of its own; leave it out",
    "--baseDir": "use --run-dir DIR",
    "--start": "workers share the records out by themselves; leave it out",
    "--sleepAfterFinish": "leave it out",
}
_ACTOR: Final = re.compile(r"akka\.tcp://[^@/]+@([^/]+)(/.*)?")

NAMES: Final = frozenset(
    (*_RENAMED, *_MODES, *_FLAGS, *_NO_MORE, "--factor", "--solver")
)  # beside --host and --master of a worker, which are told by their values


@dataclass
class _Translation:
    """The arguments so far, notes on them, and the modes that they choose."""

    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)

    def add(self, theirs: str, *ours: str) -> None:
        self.words += ours
        self.notes.append(f"{theirs} is {' '.join(ours)} here")


def for_a_run(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments for those of `speedo train` or `speedo master`, and a note for each that was translated.

    Raises `ConfigError` for options of the original that have no counterpart.
    """
    made, positional = _Translation(), list[str]()

    def other(name: str, value: Callable[[], str]) -> bool:
        if name in _MODES:
            mode, ours = _MODES[name]
            made.modes.append(mode)
            made.add(name, ours, value())
        elif name in _FLAGS:
            mode, ours = _FLAGS[name]
            made.modes += [mode] if mode else []
            if ours:
                made.add(name, ours)
        elif name == "--factor":
            made.add(name, "--delta-scale", _inverse(value()))
        elif name == "--solver":
            positional.append(value())
            made.notes.append("--solver FILE is FILE here")
        else:
            return False
        return True

    rest = _translate(words, made, other)
    if made.modes and not any(word.split("=")[0] == "--mode" for word in words):
        mode = min(made.modes, key=_rank)
        made.words += ["--mode", mode]
        made.notes.append(f"the strategy that this asks for is --mode {mode} here")
    return [*made.words, *positional, *rest], made.notes


def for_a_worker(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments for those of `speedo worker`, and a note for each that was translated. Raises `ConfigError`."""
    made = _Translation()

    def other(name: str, value: Callable[[], str]) -> bool:
        if name == "--host":
            value()
            made.notes.append(
                "--host is not needed here: the address that the master is reached from is taken"
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
        elif name in _NO_MORE:
            raise ConfigError(f"{name} of the original SpeeDO is no option here: {_NO_MORE[name]}")
        elif not other(name, value):
            made.words.append(word)
    return left


def _rank(mode: str) -> int:
    """The order in which the original checked its strategy flags."""
    return ("weed-out", "partial", "sync", "easgd").index(mode)


def _inverse(factor: str) -> str:
    try:
        return f"{1 / float(factor):g}"
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"--factor is {factor!r}: use a number above 0, or --delta-scale"
        ) from None
