"""Vectors out of the store: read into memory of one's own, or looked at where they lie; checked either way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from speedo.errors import PayloadError
from speedo.storage.base import Store
from speedo.vectors.codecs import Codec, make_codec
from speedo.vectors.vector import (
    Header,
    Kind,
    Layout,
    RunningChecksum,
    Vector,
    check_body,
    check_header,
    check_sum,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A vector where it lies in the store: read-only, and good until its blob is deleted.

    `check` raises `MissingKeyError` if that happened before: what was taken from the vector is then worth nothing.
    """

    header: Header
    vector: Vector
    check: Callable[[], None]


def fetch_vector(
    store: Store, key: str, layout: Layout, kind: Kind, into: Vector, codec: Codec | None = None
) -> Header:
    """Read a vector into `into` and refuse it unless it is of this kind and layout and undamaged.

    `codec` is how it must be written, raw by default. Raises `MissingKeyError`, `StoreError`, `PayloadError`.
    """
    codec = codec or make_codec("none", layout)
    try:
        body = codec.body_for(into)
        running = RunningChecksum(body)
        header = Header.unpack(store.read(key, body, running))
        check_header(header, layout, kind, codec.dtype)
        check_sum(header, running.whole())
        codec.decode(body, into)
    except PayloadError as error:
        text = str(error)
        raise PayloadError(text if key in text else f"{key}: {text}") from None
    return header


def look_at_vector(store: Store, key: str, layout: Layout, kind: Kind, codec: Codec) -> Seen | None:
    """As `fetch_vector`, but without a copy; None if the store, or the codec, needs one."""
    view = store.view(key, layout.nbytes) if codec.is_exact else None
    if view is None:
        return None
    try:
        header = Header.unpack(view.head)
        check_header(header, layout, kind, codec.dtype)
        check_body(header, view.body)
    except PayloadError as error:
        view.check()
        raise PayloadError(f"{key}: {error}") from None
    return Seen(header, np.frombuffer(view.body, np.float32), view.check)
