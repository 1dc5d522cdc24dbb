"""The picture of a run is drawn from its metrics alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speedo.errors import DataError
from speedo.monitor.plot import _means, _rates, draw, read_run


def write_run(folder: Path, results: int = 500, cut: str = "") -> Path:
    folder.mkdir()
    lines: list[dict[str, object]] = [
        {"time": 0.0, "event": "joined", "worker": 0, "incarnation": 1}
    ]
    for number in range(results):
        lines.append(
            {
                "time": number * 0.1, "event": "result", "decision": "merged", "worker": 0,
                "iteration": number, "loss": None if number == 3 else 2.0 - number / 500,
                "samples": 64, "staleness": number % 3,
            }
        )  # fmt: skip
    lines.append({"time": 9.0, "event": "result", "decision": "discarded", "worker": 0})
    lines.append({"time": 9.0, "event": "left", "worker": 0, "cause": "killed"})
    lines.append({"time": 9.5, "event": "test", "iteration": 400, "metrics": {"accuracy": 0.8}})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + cut)
    return folder


def test_a_run_is_read_as_columns(tmp_path: Path) -> None:
    trace = read_run(write_run(tmp_path / "run"))
    assert (len(trace.loss), trace.samples[0], trace.iteration[-1]) == (500, 64, 499)
    assert (trace.test_iteration, trace.accuracy, trace.left) == ([400], [0.8], [9.0])


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    assert len(read_run(write_run(tmp_path / "run", cut='{"time": 1, "ev')).loss) == 500


def test_two_runs_make_one_picture(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", results=30)]
    target = draw(runs, tmp_path / "both.png")
    assert target.read_bytes().startswith(b"\x89PNG")
    assert target.stat().st_size > 20_000


def test_speed_counts_every_sample_once(tmp_path: Path) -> None:
    trace = read_run(write_run(tmp_path / "run"))
    times, rates = _rates(trace)
    width = times[1] - times[0]
    assert sum(rate * width for rate in rates) == pytest.approx(500 * 64)


def test_means_of_groups() -> None:
    assert _means([1, 2, 3, 4, 5, 6, 7, 8, 9], 2) == [1.5, 3.5, 5.5, 7.5]
    assert _means([1, 2, 3], 2) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not a run directory"),
        ("", "no merged result yet"),
        ("nonsense\n{}\n", "line 1 is not a line of metrics"),
    ],
)
def test_what_is_no_run_is_told(tmp_path: Path, text: str | None, words: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if text is not None:
        (folder / "metrics.jsonl").write_text(text)
    with pytest.raises(DataError, match=words):
        draw([folder], tmp_path / "run.png")
    assert not (tmp_path / "run.png").exists()


def test_a_picture_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        draw([write_run(tmp_path / "run")], tmp_path / "run.nonsense")
