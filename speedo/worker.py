"""One worker's turn: fetch the center, train, publish; the same for Ray's actors and for the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from speedo.compression import NO_COMPRESSION, Codec, Compression, make_codec
from speedo.engines.base import Engine
from speedo.errors import PayloadError
from speedo.failpoints import reached
from speedo.messages import Train, Trained
from speedo.sgd_modes.rules import pull_towards
from speedo.storage import keys
from speedo.storage.base import Store
from speedo.weights import Header, Kind, Layout, Vector, check_body, check_header, header_for

PAYLOAD_EXPIRY_S = 900.0  # a payload that no master fetched leaves the store by itself


def fetch_vector(
    store: Store, key: str, layout: Layout, kind: Kind, into: Vector, codec: Codec | None = None
) -> Header:
    """Read a vector into `into` and refuse it unless it is of this kind and layout and undamaged.

    `codec` is how it must be written, raw by default. Raises `MissingKeyError`, `StoreError`, `PayloadError`.
    """
    codec = codec or make_codec("none", layout)
    try:
        body = codec.body_for(into)
        header = Header.unpack(store.read(key, body))
        check_header(header, layout, kind, codec.dtype)
        check_body(header, body)
        codec.decode(body, into)
    except PayloadError as error:
        text = str(error)
        raise PayloadError(text if key in text else f"{key}: {text}") from None
    return header


@dataclass
class Worker:
    """The worker `worker` of a run, in this incarnation; `clock` gives seconds for the timings.

    `samples` counts the records that the engine has trained on here.
    """

    run: str
    worker: int
    incarnation: int
    engine: Engine
    store: Store
    clock: Callable[[], float]
    epoch: int = 0
    samples: int = 0
    compression: Compression = NO_COMPRESSION
    _center: Vector = field(init=False)
    _local: Vector = field(init=False)
    _lost: Vector | None = field(default=None, init=False)
    _lost_of: Kind | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        layout = self.engine.layout
        self._center, self._local = layout.zeros(), layout.zeros()
        self._codec = make_codec(self.compression.payload, layout)
        self._center_codec = make_codec(self.compression.center, layout)
        self._center_key = keys.center if self._center_codec.is_exact else keys.rounded

    def turn(self, command: Train) -> Trained:
        """Carry out one command and return its result, whose payload lies in the store by then."""
        started = self.clock()
        self._fetch(command)
        fetched = self.clock()
        reached("worker-fetched")
        loss = self._compute(command)
        computed = self.clock()
        samples = command.steps * self.engine.samples_per_step
        self.samples += samples
        self._publish(command)
        reached("worker-pushed")
        timings = {
            "fetch": fetched - started,
            "compute": computed - fetched,
            "publish": self.clock() - computed,
        }
        return Trained(self.worker, self.incarnation, command.ticket, loss, samples, timings)

    def _fetch(self, command: Train) -> None:
        engine, layout = self.engine, self.engine.layout
        key = self._center_key(self.run, command.version)
        header = fetch_vector(
            self.store, key, layout, Kind.CENTER, self._center, self._center_codec
        )
        if header.version != command.version:
            raise PayloadError(f"{key} holds version {header.version}")
        if command.moving_rate is None:
            engine.load_weights(self._center)
            return
        engine.read_weights(self._local)
        pull_towards(self._local, self._center, command.moving_rate, layout.statistics)
        engine.load_weights(self._local)

    def _compute(self, command: Train) -> float:
        """Leaves the payload in `_local`."""
        engine = self.engine
        if command.payload is Kind.GRADIENT:
            engine.set_iteration(command.iteration)
            return engine.gradient(command.steps, self._local)
        if command.payload is Kind.DELTA:
            self._local.fill(0.0)
            return self._steps(command, self._local)
        loss = self._steps(command, None)
        engine.read_weights(self._local)
        return loss

    def _steps(self, command: Train, delta: Vector | None) -> float:
        engine = self.engine
        if command.steps == 1 or command.stride == 1:
            engine.set_iteration(command.iteration)
            return engine.step(command.steps, delta)
        total = 0.0
        for step in range(command.steps):
            engine.set_iteration(command.iteration + step * command.stride)
            total += engine.step(1, delta)
        return total / command.steps

    def _carried_over(self, command: Train) -> Vector | None:
        """What the payloads before this one lost by their encoding, to be made up for: error feedback.

        (Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; Karimireddy et al. 2019.) Of weights, too: their
        center is a mean over time, in which errors that follow each other cancel.
        """
        same, self._lost_of = self._lost_of is command.payload, command.payload
        if self._codec.is_exact:
            return None
        if self._lost is None:
            self._lost = self.engine.layout.zeros()
        elif not (same and command.carry_over):
            self._lost.fill(0.0)
        return self._lost

    def _publish(self, command: Train) -> None:
        body = self._codec.encode(self._local, self._carried_over(command))
        header = header_for(
            body,
            self.engine.layout,
            command.payload,
            version=command.version,
            worker=self.worker,
            incarnation=self.incarnation,
            ticket=command.ticket,
            epoch=self.epoch,
            dtype=self._codec.dtype,
        )
        key = keys.payload(self.run, self.worker, command.ticket)
        self.store.write(key, header.pack(), body, expire_s=PAYLOAD_EXPIRY_S)
