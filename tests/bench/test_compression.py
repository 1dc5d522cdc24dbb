from __future__ import annotations

import pytest

from bench.accuracy import options_of, points_lost, summary
from bench.compression import CODECS, measure


def test_every_codec_is_measured_and_none_pays_nothing() -> None:
    heading, memcpy, *rows = measure(0.05, list(CODECS), 1)
    assert [row[0] for row in rows] == list(CODECS)
    assert {len(row) for row in (memcpy, *rows)} == {len(heading)}
    assert [row[1] for row in rows] == [
        "0.05 MB",
        "0.025 MB",
        "0.0126 MB",
        "0.0075 MB",
        "0.000754 MB",
        "0.000176 MB",
    ]
    assert [row[-1] == "" for row in rows] == [True, False, False, False, False, False]


def test_a_compression_is_payload_and_center() -> None:
    assert options_of("int8/bfloat16", 3) == [
        "--compress", "int8", "--compress", "center=bfloat16", "--seed", "3",
    ]  # fmt: skip
    assert options_of("none@overlap=all", 1) == ["--overlap", "all", "--seed", "1"]


def test_points_are_lost_pair_by_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert points_lost([0.85, 0.84, 0.86], [0.848, 0.842, 0.85]) == pytest.approx(0.2)
    found = {("sync", 2, "none"): [0.85, 0.84], ("sync", 2, "int8"): [0.85, 0.838]}
    assert summary(found)
    assert "+0.10" in capsys.readouterr().out
    assert not summary({**found, ("sync", 2, "topk:0.1"): [0.84, 0.83]})
    assert "+1.00  FAILED" in capsys.readouterr().out
