"""Translates the options of the original SpeeDO (Zheng et al. 2015), and those of Caffe's command, into ours.

The original chose its strategy by a flag: `--sync`, `--maxAdvance N`, `--weedout N` (documented as `--drop N`, which
did not exist), `--movingRate A`. Here the same flags choose the mode, unless `--mode` is given.

Caffe: tools/caffe.cpp. Its options may begin with one dash or two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from speedo.errors import ConfigError
from speedo.sgd_modes.registry import PLAIN

_RENAMED: Final = {
    "--maxIter": "--max-iter",
    "--test": "--test-interval",
    "--train": "--local-steps",
    "--weightDecay": "--weight-decay",
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
# What Caffe's command has besides --solver, --snapshot, --weights and --gpu.
_CAFFES: Final = {
    "--model": "the solver names the nets; `speedo test NET --weights FILE` scores a net",
    "--iterations": "use --max-iter N; `speedo test` has --iterations for the batches of a test",
    "--phase": "workers train in TRAIN and testers test in TEST; leave it out",
    "--level": "write it into the solver, as in train_state { level: 1 }, or test_state",
    "--stage": "write it into the solver, as in train_state { stage: 'name' }, or test_state",
    "--sigint_effect": "Ctrl-C ends the run, which tests and exports its model; leave it out",
    "--sighup_effect": "SIGHUP ends the run, which tests and exports its model; leave it out, and use nohup against it",
}
_ONE_DASH: Final = re.compile(
    r"^-(?=(?:solver|snapshot|weights|gpu|model|iterations|phase|level|stage|sigint_effect|sighup_effect)(?:=|$))"
)
_ACTOR: Final = re.compile(r"akka\.tcp://[^@/]+@([^/]+)(/.*)?")

# Besides those that their values tell from ours: --host and --master of a worker, --phase of Caffe.
NAMES: Final = frozenset(
    (*_RENAMED, *_STRATEGIES, *_NO_MORE, *_CAFFES, "--factor", "--gradientOnly", "--solver", "--snapshot", "--gpu")
) - {"--phase"}  # fmt: skip


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
        elif name == "--snapshot":  # Caffe's is a .solverstate, the original's a .caffemodel
            file = value()
            state = file.removesuffix(".h5").endswith(".solverstate")
            made.add(name, "--resume" if state else "--weights", file)
        else:
            return _caffes(name, value, made)
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
            return name == "--gpu" and _caffes(name, value, made)
        return True

    rest = _translate(words, made, other)
    return [*made.words, *rest], made.notes


def for_a_test(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments for those of `caffe test`, and a note for each that was translated. Raises `ConfigError`."""
    made, positional = _Translation(), list[str]()

    def other(name: str, value: Callable[[], str]) -> bool:
        if name in ("--model", "--solver"):
            positional.append(value())
            made.notes.append(f"{name} FILE is now FILE")
        elif name == "--iterations":
            made.words += [name, value()]
        else:
            return _caffes(name, value, made)
        return True

    rest = _translate(words, made, other, {})
    return [*made.words, *positional, *rest], made.notes


def _caffes(name: str, value: Callable[[], str], made: _Translation) -> bool:
    """Whether it is an option of Caffe's command, which is taken then."""
    if name not in (*_CAFFES, "--gpu"):
        return False
    given = value()
    if name == "--phase" and given not in ("TRAIN", "TEST"):  # our own, of --mode hybrid
        made.words += [name, given]
        return True
    if name != "--gpu":
        raise _not_here(name, "Caffe's command", _CAFFES)
    if "," in given or given == "all":
        made.add(f"--gpu {given}", "--device", "cuda")
        made.notes.append("workers take the GPUs in turn: give --workers the number of GPUs")
    else:
        made.add(f"--gpu {given}", "--device", f"cuda:{given}")
    return True


def _not_here(name: str, of: str, remedies: Mapping[str, str]) -> ConfigError:
    return ConfigError(f"{name} of {of} does not exist here: {remedies[name]}")


def _translate(
    words: Sequence[str],
    made: _Translation,
    other: Callable[[str, Callable[[], str]], bool],
    renamed: Mapping[str, str] = _RENAMED,
) -> list[str]:
    """Fill `made` with what comes before `--`; returns the rest."""
    left = list(words)
    while left and left[0] != "--":
        word = _ONE_DASH.sub("--", left.pop(0))
        name, equals, joined = word.partition("=")

        def value(name: str = name, equals: str = equals, joined: str = joined) -> str:
            if equals:
                return joined
            if not left:
                raise ConfigError(f"{name} wants a value")
            return left.pop(0)

        if name in renamed:
            made.add(name, renamed[name], value())
        elif name == "--device":
            given = value()
            if given.lstrip("-").isdecimal():  # Caffe's number of a GPU; -1 was the CPU
                ours = "cpu" if given.startswith("-") else f"cuda:{given}"
                made.add(f"--device {given}", name, ours)
            else:
                made.words += [name, given]
        elif name in _NO_MORE:
            raise _not_here(name, "the original SpeeDO", _NO_MORE)
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
