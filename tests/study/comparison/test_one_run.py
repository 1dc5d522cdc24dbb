"""What a comparison finds of a run that was made before, and how Ctrl-C ends one."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest

from speedo.run_dir.checkpoint_file import SUFFIX
from speedo.study.comparison import one_run
from speedo.study.comparison.one_run import RunFiles, make
from speedo.study.comparison.wish import Planned
from speedo.watch.report.figures import SEQUENTIAL


def test_a_run_goes_on_only_from_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    run = Planned("one", "async", 2, 1, {"max_iter": 10}, 80)
    alone = Planned("one", SEQUENTIAL, 1, 1, {"max_iter": 10}, 80)
    place = RunFiles(tmp_path, "one")
    assert not place.has_checkpoint(run)
    (place.run_dir / "checkpoints").mkdir(parents=True)
    (place.run_dir / "config.yaml").write_text("mode: async\n")
    assert place.state(10) == "broken"
    assert not place.has_checkpoint(run), "it was interrupted before its first one"
    (place.run_dir / "checkpoints" / f"0-10{SUFFIX}").write_bytes(b"")
    assert place.has_checkpoint(run)
    assert not place.has_checkpoint(alone)
    (place.run_dir / "config.yaml").unlink()
    assert not place.has_checkpoint(run)


class _Lock:
    """A lock of `subprocess`; a Ctrl-C comes right after it was first taken."""

    def __init__(self, lock: Any) -> None:
        self._lock, self._sent = lock, False

    def acquire(self, blocking: bool = True) -> bool:
        taken: bool = self._lock.acquire(blocking)
        if taken and not self._sent:
            self._sent = True
            signal.raise_signal(signal.SIGINT)
        return taken

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Interrupted(subprocess.Popen[bytes]):
    made: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.made.append(self)
        self._waitpid_lock = _Lock(self._waitpid_lock)  # type: ignore[has-type]


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_ctrl_c_at_any_instruction_of_a_wait_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", _Interrupted)
    monkeypatch.setattr(one_run, "FAREWELL_S", 2.0)
    run = Planned("one", "async", 2, 1, {"max_iter": 10}, 80)
    with pytest.raises(KeyboardInterrupt):
        make(RunFiles(tmp_path, "one"), run, ["sleep", "600"], lambda _: None)
    assert [one.returncode for one in _Interrupted.made] == [-signal.SIGINT]
