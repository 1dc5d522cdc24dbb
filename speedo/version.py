"""The version of SpeeDO; master and workers must have the same."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
