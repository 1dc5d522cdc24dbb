"""The request to the doctor, what a check declares, and the finding that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from speedo.run.config.run_config import DEFAULT_PORT
from speedo.system.bounds import EngineName
from speedo.system.cores import Bind

if TYPE_CHECKING:  # the quick checks before each run do without
    from speedo.engines.step_memory import StepMemory

Level = Literal["ok", "warn", "fail"]
Stage = Literal["installed", "resources"]
"""`installed`: what a run starts with. `resources`: what it takes, told at the end, when the net is known."""

PROCESS_BYTES: Final = 150_000_000  # Python, Caffe's libraries and Ray's, in each of our processes
TORCH_BYTES: Final = 210_000_000  # PyTorch more than Caffe, measured with 2.13 for the CPU
OWN_MODELS: Final = 3  # the center as fetched, the payload, and what was trained from


@dataclass(frozen=True, slots=True)
class BuiltNet:
    """The built net: bytes of one exchange, and the memory of a step.

    `snapshots` is how many times the bytes of the model all snapshots take, with the solver's histories. `micro_batch`
    is the option. `devices` are the bytes of each GPU that workers compute on; none for the CPU.
    """

    nbytes: int
    step: StepMemory
    snapshots: int
    engine: EngineName = "caffe"
    micro_batch: str = ""
    devices: tuple[int, ...] = ()

    @property
    def process_bytes(self) -> int:
        """Memory of one of our processes besides the step."""
        libraries = PROCESS_BYTES + (TORCH_BYTES if self.engine == "torch" else 0)
        return libraries + OWN_MODELS * self.nbytes


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A node to examine: as the worker of the master at host:port, or alone or as a master's if `master` is None.

    `host` and `port` are where a master here would listen. `facts` are the master's
    (`speedo.study.doctor.solver.facts_of`), for a node that is examined before its master runs;
    empty if they are not known. `own`: for scripts, without solver or engine. `net` is there once it was built.
    """

    solver: Path | None = None
    master: str | None = None
    workers: int = 2
    data_root: Path | None = None
    token_file: Path | None = None
    redis: str | None = None
    run_dir: Path | None = None
    engine: EngineName | None = None
    device: str | None = None
    threads: str = "1"
    bind: Bind = "none"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    facts: dict[str, Any] | None = None
    own: bool = False
    ignore_unknown: bool = False
    micro_batch: str = ""
    net: BuiltNet | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check; `remedy` says what to do, and is empty if there is no problem.

    `rows` are the figures of a table in the text, for `--json`.
    """

    name: str
    level: Level
    text: str
    remedy: str = ""
    rows: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the machine, in one or several findings. It changes nothing there.

    With `quick` it takes milliseconds, and is made before each run too, which a `fail` ends.
    """

    find: Callable[[NodeRequest], Iterable[Finding]]
    stage: Stage = "resources"
    quick: bool = False


def ok(name: str, text: str) -> Finding:
    """No problem."""
    return Finding(name, "ok", text)


def warn(name: str, text: str, remedy: str) -> Finding:
    """A run works, but not as expected."""
    return Finding(name, "warn", text, remedy)


def fail(name: str, text: str, remedy: str = "") -> Finding:
    """A run would not work. Without a `remedy` the text names it."""
    return Finding(name, "fail", text, remedy)


def graded(name: str, text: str, remedy: str, *, fails: bool, warns: bool) -> Finding:
    """The worst of these that holds."""
    if fails:
        return fail(name, text, remedy)
    return warn(name, text, remedy) if warns else ok(name, text)


def size(count: float) -> str:
    """Bytes as text, for example `1.5 GB`."""
    unit = "kB"
    count /= 1000
    for larger in ("MB", "GB"):
        if count >= 1000:
            unit, count = larger, count / 1000
    return f"{count:,.1f} {unit}"
