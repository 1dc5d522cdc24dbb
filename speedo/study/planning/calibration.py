"""The measured times that a prediction uses: compute, transfers through the store, messages, work in the master.

All times are those of one process on an otherwise idle machine. `origin` says where each comes from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from caffenets.files import open_to_write, read_bytes
from speedo.errors import ConfigError

MOST_BYTES: Final = 1 << 20
MOST_SECONDS: Final = 1e6
MOST_COUNT: Final = 10**12
QUANTILES: Final = 21

# Assumed where nothing was measured; docs/planning.md lists them.
# Half of an actor call with its answer, Ray 2.60 on one machine: 0.65 to 0.75 ms.
MESSAGE_S: Final = 0.35e-3
CHANNEL_S: Final = 0.05e-3  # the same through the socket between processes of one machine
HANDLE_S: Final = 0.1e-3  # of the master for a result, beside arrays and messages: driver, coordinator, status, log
# Of a core of the master's machine: Ray's own processes and those that look on.
BACKGROUND: Final = 0.03
SERVER_SHARE: Final = 0.5  # of a passage through Redis, what the server's own thread takes
# Of a member of a team for each other one; 0.007 ms where nothing else uses the caches.
MEETING_S: Final = 0.03e-3

NonNegativeFloat = Annotated[float, Field(ge=0.0, le=MOST_SECONDS)]
PositiveFloat = Annotated[float, Field(gt=0.0, le=MOST_SECONDS)]
PositiveInt = Annotated[int, Field(gt=0, le=MOST_COUNT)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class StepTime(_Record):
    """Mean seconds of one solver step on this many samples."""

    samples: PositiveInt
    seconds: PositiveFloat


class Passage(_Record):
    """A transfer of the model into or out of the store: seconds in all, and processor seconds on both sides."""

    seconds: NonNegativeFloat
    client: NonNegativeFloat
    server: NonNegativeFloat


class Transport(_Record):
    """A store as one process sees it, for the raw model; `small` is a command without data, such as a delete."""

    read: Passage
    write: Passage
    small: NonNegativeFloat

    def of(self, passage: Passage, share: float) -> Passage:
        """The time of `passage` if the body has this share of the model's bytes."""
        if share >= 1.0 or passage.seconds <= self.small:
            return passage
        part = min(1.0, share + self.small / passage.seconds)
        return Passage(
            seconds=part * passage.seconds,
            client=part * passage.client,
            server=part * passage.server,
        )


class InnerProduct(_Record):
    """The weight of an inner product: `left` x `right` values of the model, from value `start` on.

    `rows` are those of its factors for the whole batch. Its sum from factors takes `sum_s` processor seconds, and
    `row_s` for each of all workers' rows.
    """

    name: str
    start: Annotated[int, Field(ge=0, le=MOST_COUNT)]
    left: PositiveInt
    right: PositiveInt
    rows: PositiveInt
    sum_s: NonNegativeFloat
    row_s: NonNegativeFloat


class Ready(_Record):
    """Values `start` to `stop` of a gradient are final `at` this share of the time of a plain step."""

    start: Annotated[int, Field(ge=0, le=MOST_COUNT)]
    stop: PositiveInt
    at: NonNegativeFloat


class OverHosts(_Record):
    """What only a team over hosts does, with one local step.

    A step is a gradient, whose parts leave as they are `ready`, and an update; both as shares of the time of a plain
    step. A sum on a ring of hosts takes each of them `ring_call` processor seconds, and `ring` for as many bytes sent
    as the model has.
    """

    products: tuple[InnerProduct, ...]
    ready: tuple[Ready, ...]
    gradient: PositiveFloat
    update: NonNegativeFloat
    ring_call: NonNegativeFloat
    ring: NonNegativeFloat


class Calibration(_Record):
    """One net on one kind of machine. `cores` processes at once each compute `crowding` times slower than one.

    `shape` are the step times at evenly spaced quantiles, ascending, scaled to a mean of 1. `far` and `near` are Redis
    by TCP and, on its own machine, by unix socket. A worker sends `payload_bytes` and fetches `center_bytes`; `nbytes`
    are those of the raw model.

    Processor seconds: `load` and `pull` of a worker after a fetch, `pull` being the elastic one alone; `far_load`
    replaces `load` on another machine than the master's, if a run gave it; `seal` before a worker sends; `check` of
    the master for a payload that it has read, `merge` to merge it, `publish` before it writes a version, `handle` for
    everything else per result. `message` and `far_message` are seconds from one end to the other. `meeting` is the time
    of a member of a team for each other member at each meeting.

    A step computes with `threads` threads, each on one core; an `offloaded` step uses no core. `over_hosts` is None
    where it was not measured.
    """

    format: Literal[1] = 1
    net: str
    batch_size: PositiveInt
    iter_size: PositiveInt = 1
    nbytes: PositiveInt
    payload_bytes: PositiveInt
    center_bytes: PositiveInt
    compression: str = "none"
    steps: tuple[StepTime, ...] = Field(min_length=1)
    shape: tuple[NonNegativeFloat, ...] = (1.0,)
    cores: PositiveInt
    crowding: float = Field(1.0, ge=1.0, le=MOST_SECONDS)
    background: float = Field(0.0, ge=0.0, lt=1.0)
    far: Transport
    near: Transport
    shared_memory: Transport | None = None
    load: NonNegativeFloat
    far_load: NonNegativeFloat | None = None
    pull: NonNegativeFloat
    seal: NonNegativeFloat
    check: NonNegativeFloat
    merge: NonNegativeFloat
    publish: NonNegativeFloat
    handle: NonNegativeFloat
    message: NonNegativeFloat
    far_message: NonNegativeFloat
    meeting: NonNegativeFloat = MEETING_S
    threads: PositiveInt = 1
    offloaded: bool = False
    over_hosts: OverHosts | None = None
    origin: dict[str, str] = {}

    @property
    def batch(self) -> int:
        """Samples of one iteration of sequential Caffe."""
        return self.batch_size * self.iter_size

    @property
    def images_per_s(self) -> float:
        """Images/s of sequential Caffe: one process with the threads of a worker, the whole batch."""
        return self.batch / self.step_seconds(self.batch)

    def ring_work(self, nbytes: float) -> float:
        """Processor seconds of a host that sends so much on a ring, takes in as much, and adds half of that."""
        if self.over_hosts is not None:
            return self.over_hosts.ring * nbytes / self.nbytes
        passages = self.far.write.client + self.far.read.client
        return (passages + self.merge / 2) * nbytes / self.nbytes

    def load_on(self, *, far: bool) -> float:
        """Of a worker, from a fetched center to the first step; `far` from the master."""
        return self.load if self.far_load is None or not far else self.far_load

    def at(self, quantile: float) -> float:
        """A step's time relative to the mean, at this quantile of the measured ones."""
        place = quantile * (len(self.shape) - 1)
        low = int(place)
        high = min(low + 1, len(self.shape) - 1)
        return self.shape[low] + (place - low) * (self.shape[high] - self.shape[low])

    def step_seconds(self, samples: int) -> float:
        """Seconds of one step: linear between the measured batches, proportional beyond them."""
        known = sorted((step.samples, step.seconds) for step in self.steps)
        sizes, seconds = zip(*known, strict=True)
        nearest: int = min(max(samples, sizes[0]), sizes[-1])
        return float(np.interp(nearest, sizes, seconds)) * (samples / nearest)


def with_step_time(known: Calibration, seconds: float) -> Calibration:
    """The same, with steps of the whole batch that take so long on something else than the cores, as on a GPU."""
    steps = (StepTime(samples=known.batch, seconds=seconds),)
    told = f"given: {1000 * seconds:g} ms for a step of the whole batch, always the same, on no core of the machines"
    over, apart = known.over_hosts, dict[str, str]()
    if over is not None:  # what a GPU computes comes at the end
        ready = tuple(one.model_copy(update={"at": 1.0}) for one in over.ready)
        over = over.model_copy(update={"ready": ready, "gradient": 1.0, "update": 0.0})
        apart["teams over machines"] = (
            "measured here: sums of inner products from factors, and a ring of two over this machine's loopback; "
            "assumed: nothing of a gradient leaves before all of it is ready"
        )
    return known.model_copy(
        update={
            "steps": steps,
            "over_hosts": over,
            "shape": (1.0,),
            "crowding": 1.0,
            "threads": 1,
            "offloaded": True,
            "origin": {
                **known.origin,
                "compute": told,
                "crowding": "none: no core computes",
                **apart,
            },
        }
    )


def with_threads(known: Calibration, threads: int, speedup: float) -> Calibration:
    """Steps that were measured with one thread, and take `speedup` times less with this many."""
    steps = tuple(
        StepTime(samples=step.samples, seconds=step.seconds / speedup) for step in known.steps
    )
    told = f"{known.origin.get('compute', '')}; given: {threads} threads are {speedup:g} times as fast as one"
    return known.model_copy(
        update={
            "steps": steps,
            "threads": threads,
            "origin": {**known.origin, "compute": told.removeprefix("; ")},
        }
    )


def shape_of(seconds: list[float]) -> tuple[float, ...]:
    """Quantiles of these times, scaled so that draws from them have mean 1: `Calibration.shape`."""
    quantiles = np.quantile(seconds, np.linspace(0.0, 1.0, QUANTILES))
    mean = (quantiles.sum() - 0.5 * (quantiles[0] + quantiles[-1])) / (QUANTILES - 1)
    return tuple((quantiles / mean).tolist())


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write JSON. Raises `ConfigError`."""
    try:
        with open_to_write(path) as file:
            file.write(calibration.model_dump_json(indent=2).encode() + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; give another --save"
        ) from None


def read_calibration(path: Path) -> Calibration:
    """What `write_calibration` wrote. Raises `ConfigError`."""
    try:
        return Calibration.model_validate_json(read_bytes(path, MOST_BYTES))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; give a file of --save, or a run directory"
        ) from None
    except (ValueError, ValidationError):
        raise ConfigError(
            f"{path} holds no calibration of this version: create it again with --save, or give a run directory"
        ) from None
