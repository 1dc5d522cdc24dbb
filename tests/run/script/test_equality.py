"""Workers with parts of the batch make the model of one process with the whole, however the script trains it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.run.script.scripts.equality_rows import ROWS
from tests.run.script.test_run_command import run
from tests.support.commands import Commands

pytestmark = [
    pytest.mark.torch,
    pytest.mark.ray,
    pytest.mark.redis,
    pytest.mark.usefixtures("forked_python"),
]
