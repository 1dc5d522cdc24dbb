"""What a comparison finds of a run that was made before."""

from __future__ import annotations

from pathlib import Path

from speedo.run_dir.checkpoint_file import SUFFIX
from speedo.study.comparison.one_run import Place
from speedo.study.comparison.wish import Planned
from speedo.watch.report.figures import SEQUENTIAL


def test_a_run_goes_on_only_from_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    run = Planned("one", "async", 2, 1, {"max_iter": 10}, 80)
    alone = Planned("one", SEQUENTIAL, 1, 1, {"max_iter": 10}, 80)
    place = Place(tmp_path, "one")
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
