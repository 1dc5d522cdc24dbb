"""`speedo master` and `speedo worker` as separate commands on one machine, over TLS."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from speedo.master.reasons import too_few_joined
from tests.support.commands import Commands, free_port, wait_for_line
from tests.support.processes import words_of

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.caffe]
WAIT_S = 240


def master(speedo: Commands, port: int, *options: str) -> tuple[str, ...]:
    return (
        "master", "--port", str(port), "--mode", "easgd", "--workers", "2", "--max-iter", "40",
        "--test-interval", "20", "--redis", "tls=yes", "--timeout", "300", "--run-dir", "run", *options,
    )  # fmt: skip


def worker(port: int, *options: str) -> tuple[str, ...]:
    return ("worker", "--master", f"127.0.0.1:{port}", "--timeout", "300", *options)


def test_master_and_workers_meet_in_either_order_and_strangers_are_refused_meanwhile(
    speedo: Commands, tested_problem: Path, tmp_path: Path
) -> None:
    """A wrong token, another Ray, another Python: one sentence each. No secret of Redis is where others can see it."""
    port = free_port()
    early = speedo.start(*worker(port))
    chief = speedo.start(*master(speedo, port, str(tested_problem)))
    wrong = speedo.start(*worker(port), environment={"SPEEDO_TOKEN": "0123456789abcdef" * 4})
    ray = speedo.start(
        *worker(port), environment=disguised(tmp_path, "ray", "ray.__version__", "2.1.0")
    )
    python = speedo.start(
        *worker(port),
        environment=disguised(
            tmp_path, "ray._private.utils", "ray._private.utils.compute_version_info", "3.12.9"
        ),
    )
    for process, words in (
        (wrong, ["refused our token", "SPEEDO_TOKEN"]),
        (ray, ["Ray differs", "2.1.0", "pip install ray=="]),
        (python, ["Python differs", "3.12.9", "use Python"]),
    ):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1, errors
        told = [line for line in errors.splitlines() if line.startswith("speedo: ")]
        assert len(told) == 1, errors
        assert all(word in told[0] for word in words), errors
        assert "Traceback" not in errors
    late = speedo.start(*worker(port))
    wait_for_line(tmp_path / "run" / "metrics.jsonl", '"version":10,', 90)
    shown = [" ".join(words_of(process)) for process in speedo.left()]
    assert any("redis-server" in line for line in shown)
    for process in (early, late, chief):
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        shown.append(errors)
    shown += [path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*.*")]
    assert not [text for text in shown if re.search(r"rediss?://|\b[0-9a-f]{48}\b", text)]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["mode"], result["workers"], result["iteration"]) == ("easgd", 2, 40)
    assert result["complete"]
    assert result["accuracy"] is not None
    assert Path(result["model"]).stat().st_size > 1_200_000
    assert speedo.token_file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    merged = [line for line in lines if line.get("decision") == "merged"]
    assert {line["worker"] for line in merged} == {0, 1}
    assert len(merged) == 40


def disguised(folder: Path, module: str, attribute: str, version: str) -> dict[str, str]:
    """An environment in which every Python says that it, or its Ray, is of another version."""
    home = folder / f"as-{module}"
    home.mkdir()
    of_both = f"lambda: (ray.__version__, {version!r})"  # what Ray compares
    value = of_both if attribute.endswith("version_info") else repr(version)
    (home / "sitecustomize.py").write_text(f"import {module}\n{attribute} = {value}\n")
    return {
        "PYTHONPATH": os.pathsep.join([str(home), *filter(None, [os.environ.get("PYTHONPATH")])])
    }


def test_a_master_without_workers_says_so(speedo: Commands) -> None:
    process = speedo.start(*master(speedo, free_port(), "--timeout", "16"))
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 3, errors
    assert f"nothing was trained: {too_few_joined(0, 2, 16.0)}" in errors
