"""A payload of NaN, well formed otherwise, in the place of one that a worker has published."""

from __future__ import annotations

from dataclasses import replace

from speedo.exchange.vector import Header, checksum
from speedo.worker.turn import EngineWorker


def poison(worker: EngineWorker, key: str) -> None:
    """Replace the payload under this key in all its stores."""
    vector = worker.engine.layout.zeros()
    vector.fill(float("nan"))
    for store, body in zip(worker.stores, worker.exchange.encode(vector, None), strict=False):
        header = Header.unpack(store.incoming.read_head(key)[0])
        store.incoming.write(key, replace(header, checksum=checksum(body)).pack(), body)
