"""The run log keeps the timings of a result that is held while a repetition of it is refused."""

from __future__ import annotations

import json
from pathlib import Path

from speedo.messages import Drop, Merge, Part, Trained
from speedo.runlog import METRICS, MetricsLog


def test_a_late_repetition_does_not_take_the_timings_of_the_result(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, start=0.0)
    result = Trained(0, 1, 7, 0.5, 10, {"compute": 0.25})
    log.saw(result, 1.0)
    log.saw(Trained(0, 1, 7, 0.5, 10, {}), 1.1)
    log.did(Drop(0, 1, 7, "late", "its ticket is not outstanding", loss=0.5), 1.1)
    log.did(Merge(1, 1, 10, 1.0, (Part(0, 1, 7, 10, 0, 0.5),)), 1.2)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / METRICS).open()]
    assert [line["decision"] for line in lines] == ["late", "merged"]
    assert lines[1]["timings"] == {"compute": 0.25}
