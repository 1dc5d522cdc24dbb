"""skorch in a run of two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Commands

pytestmark = [
    *(pytest.mark.torch, pytest.mark.libraries, pytest.mark.ray, pytest.mark.redis),
    pytest.mark.usefixtures("forked_python"),
]


def test_fit_trains_each_record_once(speedo: Commands, tmp_path: Path) -> None:
    from tests.integrations.one_process import one_process, run_library

    run_library(speedo, tmp_path, "skorch", one_process())
