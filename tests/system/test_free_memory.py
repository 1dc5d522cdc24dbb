"""The memory that is free under the limits of the cgroups that a process is in."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from speedo.system.free_memory import free_memory

MB = 1_000_000
HUGE = 9223372036854771712  # what cgroup v1 has for no limit


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"memory.{name}").write_text(f"{content}\n")


@pytest.mark.parametrize(
    ("line", "inner", "outer", "free"),
    [
        ("0::/job/step", ("max", 5 * MB), (40 * MB, 10 * MB), 30),  # the one around has the limit
        ("0::/job/step", (20 * MB, 5 * MB), (40 * MB, 10 * MB), 15),
        ("0::/job/step", (20 * MB, 30 * MB), ("max", 10 * MB), 0),
        ("4:cpuset,memory:/job/step", (HUGE, 5 * MB), (40 * MB, 10 * MB), 30),
    ],
)
def test_the_tightest_limit_around_a_process_counts(
    tmp_path: Path,
    line: str,
    inner: tuple[object, int],
    outer: tuple[object, int],
    free: int,
) -> None:
    old = line.startswith("4")
    base = tmp_path / "cgroup" / ("memory" if old else "")
    names = ("limit_in_bytes", "usage_in_bytes") if old else ("max", "current")
    write(base / "job" / "step", **dict(zip(names, inner, strict=True)))
    write(base / "job", **dict(zip(names, outer, strict=True)))
    (tmp_path / "own").write_text(f"2:cpu:/other\n{line}\n")
    assert free_memory(tmp_path / "cgroup", tmp_path / "own") == free * MB


def test_files_that_the_kernel_drops_first_are_free(tmp_path: Path) -> None:
    stat = f"anon {5 * MB}\ninactive_file {3 * MB}\nactive_file {2 * MB}"
    write(tmp_path, max=20 * MB, current=10 * MB, stat=stat)
    (tmp_path / "own").write_text("0::/of the host, not mounted here\n")
    assert free_memory(tmp_path, tmp_path / "own") == 13 * MB


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    found = free_memory(tmp_path, tmp_path / "none")
    assert found == pytest.approx(psutil.virtual_memory().available, rel=0.2)
