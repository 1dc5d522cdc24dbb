"""A run of a user's script, seen and ill-treated from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.faults.rows import MODES
from tests.faults.running import GAP_S, Watched
from tests.support.commands import Commands
from tests.support.invariants import Line, broken, read_lines

SCRIPT_MODES: Final = (*MODES, "hybrid")
FIT: Final = Path(__file__).parents[1] / "run" / "script" / "scripts" / "fit.py"
RECORDS, EPOCHS = 240, 3  # of FIT, in batches of 8
EACH_ONCE: Final = Counter((epoch, place) for epoch in range(EPOCHS) for place in range(RECORDS))
PHASES: Final = tuple(
    word
    for phase in ("sync:20", "async:20", "easgd:20", "partial")
    for word in ("--phase", phase)
)  # fmt: skip


def options_of(mode: str) -> tuple[str, ...]:
    return ("--mode", mode, *(PHASES if mode == "hybrid" else ("--local-steps", "2")))


def kept(lines: Iterable[Line]) -> list[Line]:
    """The lines of a log, without results that a resumption has undone."""
    found: list[Line] = []
    for line in lines:
        if line["event"] == "resumed":
            found = [
                one
                for one in found
                if one.get("decision") != "merged" or one["version"] <= line["version"]
            ]
        found.append(line)
    return found


def trained(lines: Iterable[Line]) -> Counter[tuple[int, int]]:
    """How often each position of each epoch is in a result that was merged."""
    return Counter(
        (epoch, position)
        for line in lines
        if line["event"] == "result" and line["decision"] == "merged"
        for epoch, start, stop in line.get("records", ())  # in a team one may have none
        for position in range(start, stop)
    )


class ScriptRun(Watched):
    """`speedo run`, or `speedo master --own`; `words` are further options, and the script with its arguments."""

    def __init__(
        self,
        speedo: Commands,
        mode: str,
        *words: str,
        command: str = "run",
        name: str = "run",
        environment: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        super().__init__(speedo, mode, name)
        options = ("--run-dir", name, *options_of(mode))
        self.process = speedo.start(
            command, *options, *words, environment=environment, inside=inside
        )

    def resume(self, *words: str, command: str = "run") -> None:
        """Go on with it in a new command, which is `process` from now on."""
        self.process = self.speedo.start(command, "--resume", str(self.dir), *words)

    def check(self, *more: Path) -> list[Line]:
        """The lines of the run, in its directory and in `more` logs: promises hold, each record is trained once."""
        lines = [line for file in (self.dir / "metrics.jsonl", *more) for line in read_lines(file)]
        found = broken(lines, None, gap_s=GAP_S)
        assert not found, "\n".join(found[:20])
        assert trained(kept(lines)) == EACH_ONCE
        return lines
