"""The checkpoint file: everything that is needed to resume a run.

A file begins with `MAGIC`, the length of a JSON header (8 bytes, little-endian) and that header's xxh3. The
header holds the counters of the run, and name, length and xxh3 of each section that follows it: the center
(float32, little-endian), the solver histories of the master and of the workers, and what there is of a script.
The file is written under another name, synced and renamed, so it is never incomplete. Reading verifies the checksums,
so later damage on the disk is detected.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import xxhash
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from caffenets.files import open_to_read, sync_folder, written_whole
from speedo.errors import CheckpointError
from speedo.exchange.vector import Vector, as_bytes
from speedo.system.bounds import LARGEST_INT32
from speedo.system.failpoints import reached

MAGIC: Final = b"SPEEDO-CHECKPOINT-1\n"
SUFFIX: Final = ".checkpoint"
KEPT: Final = 2  # files of a run: should the newest be damaged, there is another
MOST_HEADER_BYTES: Final = 16 << 20
MOST_COUNT: Final = 2**53
MOST_SECONDS: Final = 1e10  # three hundred years
_LENGTHS: Final = struct.Struct("<QQ")

Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Int32 = Annotated[int, Field(ge=0, le=LARGEST_INT32)]
Digest = Annotated[int, Field(ge=0, lt=2**64)]
# What checks a header is built when one is read.
_STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, defer_build=True)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The data position of one worker: it had read `batches` of `batch_size` records from shard `rank` of `count`.

    `share` is the way in which the records were shared; of one worker's host alone, `data` is their digest.
    """

    __pydantic_config__ = _STRICT
    rank: Count
    count: Annotated[int, Field(ge=1, le=MOST_COUNT)]
    batch_size: Annotated[int, Field(ge=1, le=LARGEST_INT32)]
    batches: Count
    share: Annotated[str, Field(max_length=32)] = "shard"
    data: Annotated[str, Field(max_length=64)] = ""


@dataclass(frozen=True, slots=True)
class TurnLengths:
    """Where an adaptive length of turns is: its steps, the mean loss of the first window, the sums of this one."""

    __pydantic_config__ = _STRICT
    steps: Count
    first: float | None
    loss: float
    samples: Count


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Where phases, stopping rules and turns are: the index of the phase and the samples merged in it, the best value
    of the watched test output and its iteration, and the tests since then."""

    __pydantic_config__ = _STRICT
    phase: Count = 0
    phase_samples: Count = 0
    best: float | None = None
    best_iteration: Int32 | None = None
    since_best: Count = 0
    turns: TurnLengths | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a run at `version`; `seconds` are those of training, `received` counts results."""

    __pydantic_config__ = _STRICT
    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    epoch: Int32
    mode: Annotated[str, Field(max_length=256)]
    version: Count
    iteration: Int32
    samples: Count
    received: Count
    seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)]
    layout: Digest
    dropped: Mapping[str, Count] = field(default_factory=dict)
    progress: TrainingProgress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header(Counters):
    """What the header of a file may say; its checksum only says that it was written so."""

    dropped: Mapping[str, Count]
    workers: dict[Int32, WorkerState]
    sections: list[tuple[str, Count, Digest]]


_HEADER: Final = TypeAdapter(_Header)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`histories` are opaque bytes of the engines; `workers` and `histories` go by slot.

    `rule_state` is what the merge rule keeps beside the center (`speedo.sgd_modes.rules.state`).
    `script` is what the run of a script has besides (`speedo.run.script_resume`); empty for one of a solver.
    `records` says which are trained (`speedo.master.turn_records`), where the master gives them out.
    """

    counters: Counters
    center: Vector
    master_history: bytes = b""
    workers: Mapping[int, WorkerState] = field(default_factory=dict)
    histories: Mapping[int, bytes] = field(default_factory=dict)
    rule_state: bytes = b""
    script: bytes = b""
    records: bytes = b""


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write it into `folder`, keep only the newest few there, and return its path; raises `CheckpointError`."""
    counters = checkpoint.counters
    path = checkpoint_path(folder, counters.epoch, counters.version)
    sections: list[tuple[str, memoryview]] = [
        ("center", as_bytes(checkpoint.center)),
        ("master", memoryview(checkpoint.master_history)),
        *([("rule", memoryview(checkpoint.rule_state))] if checkpoint.rule_state else []),
        *(
            (f"worker-{slot}", memoryview(state))
            for slot, state in sorted(checkpoint.histories.items())
        ),
        *([("script", memoryview(checkpoint.script))] if checkpoint.script else ()),
        *([("records", memoryview(checkpoint.records))] if checkpoint.records else ()),
    ]
    header = json.dumps(
        {
            **asdict(counters),
            "workers": {str(slot): asdict(one) for slot, one in checkpoint.workers.items()},
            "sections": [[name, len(part), _sum(part)] for name, part in sections],
        }
    ).encode()
    try:
        folder.mkdir(exist_ok=True)
        with written_whole(path) as file:
            file.write(MAGIC + _LENGTHS.pack(len(header), _sum(header)) + header)
            for _, part in sections:
                file.write(part)
                reached("master-checkpointing")
        sync_folder(folder)
    except OSError as error:
        raise CheckpointError(
            f"no checkpoint could be written in {folder}: {error.strerror or error}; make room there or make it "
            "writable"
        ) from None
    for old in checkpoints_in(folder)[KEPT:]:
        with suppress(OSError):  # what is left over does no harm: only the newest are read
            old.unlink(missing_ok=True)
    return path


def checkpoint_path(folder: Path, epoch: int, version: int) -> Path:
    """The file of the checkpoint of this version by the master of this epoch."""
    return folder / f"{epoch:06d}-{version:012d}{SUFFIX}"


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check a file; raises `CheckpointError` if it is incomplete, damaged or no checkpoint."""
    try:
        with open_to_read(path) as file:
            start = file.read(len(MAGIC) + _LENGTHS.size)
            if not start.startswith(MAGIC) or len(start) < len(MAGIC) + _LENGTHS.size:
                raise _damaged(path, "it does not start like a checkpoint")
            length, digest = _LENGTHS.unpack(start[len(MAGIC) :])
            header = file.read(min(length, MOST_HEADER_BYTES))
            if len(header) != length or _sum(header) != digest:
                raise _damaged(path, "its header is incomplete")
            values = _header(path, header)
            room = os.fstat(file.fileno()).st_size - file.tell()
            if sum(size for _, size, _ in values.sections) != room:
                raise _damaged(path, "it is not as long as it says")
            parts: dict[str, bytes] = {}
            for name, size, expected in values.sections:
                parts[name] = file.read(size)
                if _sum(parts[name]) != expected:
                    raise _damaged(path, f"the section {name} differs from its checksum")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    return _assembled(path, values, parts)


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoint files of a folder, newest first: by fencing epoch, then by version."""
    return sorted(folder.glob(f"[0-9]*{SUFFIX}"), reverse=True)


def latest(folder: Path) -> tuple[Path, Checkpoint, list[str]]:
    """The newest undamaged checkpoint, and the problems of those that are newer.

    Raises `CheckpointError` if there is none.
    """
    problems: list[str] = []
    for path in checkpoints_in(folder):
        try:
            return path, read_checkpoint(path), problems
        except CheckpointError as error:
            problems.append(str(error))
    found = "; ".join(problems) or "the run was killed before its first one"
    raise CheckpointError(f"there is no usable checkpoint in {folder}: {found}")


def _header(path: Path, text: bytes) -> _Header:
    try:
        header = _HEADER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _damaged(
            path, f"its header is not that of a run: {place or 'all of it'}: {first['msg']}"
        ) from None
    for slot, worker in header.workers.items():
        if worker.rank >= worker.count:
            raise _damaged(path, f"its header is no run's: worker {slot} has no shard")
    return header


def _assembled(path: Path, values: _Header, parts: dict[str, bytes]) -> Checkpoint:
    if not parts.keys() >= {"center", "master"} or len(parts) < len(values.sections):
        raise _damaged(path, "it lacks sections of a run")
    if len(parts["center"]) % 4:
        raise _damaged(path, "its center is not float32")
    center = np.frombuffer(parts["center"], dtype="<f4").copy()
    if not np.isfinite(center).all():
        raise _damaged(path, "its center holds numbers that are not finite")
    counters = Counters(**{name: getattr(values, name) for name in Counters.__slots__})
    return Checkpoint(
        counters,
        center,
        parts["master"],
        values.workers,
        {slot: parts[f"worker-{slot}"] for slot in values.workers if f"worker-{slot}" in parts},
        parts.get("rule", b""),
        parts.get("script", b""),
        parts.get("records", b""),
    )


def _sum(data: bytes | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(data)


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {what}")
