"""Speed of encoding and decoding a vector in every form, beside memcpy.

    python -m bench.compression [--rounds 9] [--megabytes 1.72 53.5] [--codecs none bfloat16 int8 topk:0.01 sparse:0.01]

Counts the bytes of the float32 vector, whatever is made of them; prints medians in GB/s, and milliseconds. Encoding is
that of a worker whose last result was merged: with the rest that its last payloads left. All ways take turns, so that
they see the same machine. The limit is the rate of a link below which fewer bytes are worth it: what encoding and
decoding take is less than what the link saves.
"""

from __future__ import annotations

import statistics
import sys

import numpy as np

from bench.store_speed import SIZES, SMALL_MB, seconds
from bench.support import table
from bench.support.arguments import parser_for, rounds, size
from bench.support.machine import heading
from bench.support.processes import end_by_signals
from speedo.exchange.codecs import Codec, make_codec
from speedo.exchange.vector import Blob, Layout, Vector

CODECS = ("none", "bfloat16", "int8", "topk:0.1", "topk:0.01", "sparse:0.01")
HEADING = ["body", "encode", "GB/s", "with feedback", "GB/s", "decode", "GB/s", "pays below"]


def deltas(values: int) -> Vector:
    """As those of a net: layers of different size, most values small."""
    random = np.random.default_rng(0)
    sizes = np.repeat(10.0 ** random.uniform(-5, -3, 16), -(-values // 16))[:values]
    return (random.standard_normal(values) ** 3 * sizes).astype(np.float32)


def times(
    codec: Codec, vector: Vector, residual: Vector, into: Vector
) -> tuple[float, float, float]:
    """Seconds to encode, to encode with feedback, and to decode."""
    plain = seconds(lambda: codec.encode(vector))
    fed = seconds(lambda: codec.encode(vector, residual))
    body = codec.encode(vector)
    if codec.is_exact:
        body = memoryview(bytearray(body))  # its own memory would need no decoding at all
    return plain, fed, seconds(lambda: codec.decode(body, into))


def measure(megabytes: float, names: list[str], repeats: int) -> table.Table:
    """A row for each codec; the first round is not counted."""
    vector = deltas(round(megabytes * 250_000))
    layout = Layout((Blob("ip", vector.shape),))
    codecs = {name: make_codec(name, layout) for name in dict.fromkeys(names)}
    residuals = {name: layout.zeros() for name in codecs}
    into, copies = layout.zeros(), []
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in codecs}
    for _ in range(repeats + 1):
        copies.append(seconds(lambda: np.copyto(into, vector)))
        for name, codec in codecs.items():
            seen[name].append(times(codec, vector, residuals[name], into))
    copy = statistics.median(copies[1:])
    lines = [[f"{megabytes:g} MB", *HEADING], ["memcpy", "", *_speed(vector, copy)]]
    lines[-1] += [""] * (len(lines[0]) - len(lines[-1]))
    for name, rows in seen.items():
        plain, fed, decoded = (statistics.median(column) for column in zip(*rows[1:], strict=True))
        saved = 8 * (vector.nbytes - codecs[name].body_bytes)
        link = saved / (fed + decoded) / 1e9
        lines.append(
            [
                name,
                f"{codecs[name].body_bytes / 1e6:.3g} MB",
                *_speed(vector, plain),
                *_speed(vector, fed),
                *_speed(vector, decoded),
                f"{link:.1f} Gbit/s" if saved else "",
            ]
        )
    return lines


def _speed(vector: Vector, took: float) -> list[str]:
    return [f"{1e3 * took:.2f} ms", f"{vector.nbytes / took / 1e9:.1f}"]


def main() -> int:
    parser = parser_for("bench.compression", __doc__, default_rounds=9)
    parser.add_argument("--megabytes", nargs="+", type=size, default=list(SIZES), metavar="MB")
    parser.add_argument("--codecs", nargs="+", default=list(CODECS), metavar="HOW")
    asked = parser.parse_args()
    end_by_signals()
    heading("bench.compression")
    write = table.markdown if asked.markdown else table.text
    print(f"medians of {rounds(asked.rounds)}, of more for small vectors")
    for megabytes in asked.megabytes:
        repeats = asked.rounds * max(1, round(SMALL_MB / megabytes))
        print(f"\n{write(measure(megabytes, asked.codecs, repeats))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
