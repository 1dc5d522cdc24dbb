"""A process of `bench.floor`: Caffe's steps, and around them as little as an exchange can be.

    python -m bench.support.floor_process FOLDER NUMBER WORKERS SOLVER BATCH STEPS

It speaks through the socket in the folder: `Word`s of one length, so that none needs to be parsed.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import Draws, read_solver, solver_for_worker
from speedo.exchange.core_affinity import Draw, DriverThread
from speedo.exchange.vector import squared_norm

SOCKET: Final = "socket"
WORD: Final = struct.Struct("<cBd")  # what, which center or way, until when on the machine's clock
BEGIN, DONE, GO, STOP = b"b", b"d", b"g", b"s"
LENGTH: Final = struct.Struct("<I")  # of the line of JSON that tells what a window came to
ALONE, MEETING, EXCHANGE = range(3)
WARM_UP: Final = 3


def receive(channel: socket.socket, length: int) -> bytes:
    """So many bytes; raises `ConnectionError` at the end."""
    data = b""
    while len(data) < length:
        more = channel.recv(length - len(data))
        if not more:
            raise ConnectionError("the other end has gone")
        data += more
    return data


def tell(channel: socket.socket, what: object) -> None:
    line = json.dumps(what).encode()
    channel.sendall(LENGTH.pack(len(line)) + line)


def hear(channel: socket.socket) -> object:
    """What `tell` has sent at the other end."""
    return json.loads(receive(channel, LENGTH.unpack(receive(channel, LENGTH.size))[0]))


def centers(workers: int) -> int:
    """How many versions lie in memory: each worker may still read one while the next is written."""
    return workers + 1


def payload_of(folder: Path, number: int) -> Path:
    return folder / f"payload{number}"


def center_of(folder: Path, number: int) -> Path:
    return folder / f"center{number}"


class Turns:
    """One process's turns: of `steps` steps each, in one of three ways."""

    def __init__(
        self, engine: PycaffeEngine, channel: socket.socket, payload: Path, versions: list[Path]
    ) -> None:
        self._engine, self._channel = engine, channel
        cores, middle = sorted(os.sched_getaffinity(0)), os.getppid()
        none_to_spare = len(versions) > len(cores)  # there is one more version than processes
        driver = DriverThread(middle, middle, cores if none_to_spare else [])
        self._draw = Draw(driver, channel)  # as our workers do
        shape = (engine.layout.size,)
        self._payload = np.memmap(payload, np.float32, "r+", shape=shape)
        self._centers = [np.memmap(one, np.float32, "r", shape=shape) for one in versions]

    def until(self, end: float, way: int, steps: int) -> dict[str, float]:
        """Turns until `end`, or until a word says so: how many, and the seconds of all and of Caffe alone."""
        count, computing, center = 0, 0.0, self._centers[0]
        began = time.monotonic()
        while True:
            before = time.monotonic()
            if way == EXCHANGE and steps == 1:
                self._engine.step(1, self._payload)
            else:
                self._engine.step(steps)
            after = time.monotonic()
            computing += after - before
            count += 1
            if way == ALONE:
                if after >= end:
                    break
                continue
            if way == EXCHANGE:
                if steps > 1:
                    self._engine.read_weights(self._payload)
                    self._payload -= center
                squared_norm(self._payload)
            self._draw()
            self._channel.sendall(WORD.pack(DONE, 0, 0.0))
            what, which, _ = WORD.unpack(receive(self._channel, WORD.size))
            if what == STOP:
                break
            if way == EXCHANGE:
                center = self._centers[which]
                self._engine.load_weights(center)
        return {"turns": count, "seconds": time.monotonic() - began, "computing": computing}


def engine_for(solver: Path, batch: int, seed: int, scratch: Path) -> PycaffeEngine:
    """Caffe with this solver's net, as a worker has it that nobody shares the records with."""
    spec = read_solver(solver).on_node(None)
    text = solver_for_worker(
        spec, rank=0, count=1, batch_size=batch, seed=seed, scratch=scratch, draws=Draws.ALL
    )
    return PycaffeEngine(text, lr_policy=spec.lr_policy, folder=spec.folder, scratch=scratch)


def main(folder: Path, number: int, workers: int, solver: Path, batch: int, steps: int) -> None:
    engine = engine_for(solver, batch, 1 + number, folder)
    engine.step(WARM_UP, engine.layout.zeros())
    weights = engine.layout.zeros()
    engine.read_weights(weights)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(folder / SOCKET))
        tell(channel, {"number": number, "values": engine.layout.size})
        if number == 0:
            hear(channel)  # the first center's memory is there
            first = np.memmap(center_of(folder, 0), np.float32, "r+", shape=weights.shape)
            first[:] = weights
            tell(channel, "ready")
        hear(channel)
        versions = [center_of(folder, one) for one in range(centers(workers))]
        turns = Turns(engine, channel, payload_of(folder, number), versions)
        tell(channel, "ready")
        try:
            while True:
                _, way, end = WORD.unpack(receive(channel, WORD.size))
                tell(channel, turns.until(end, way, steps))
        except ConnectionError:
            pass  # that was all
    engine.close()


if __name__ == "__main__":
    _, place, *numbers, path, images, length = sys.argv
    main(Path(place), int(numbers[0]), int(numbers[1]), Path(path), int(images), int(length))
