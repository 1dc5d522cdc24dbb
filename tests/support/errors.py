"""Errors by their kind, where a test does not repeat the sentence."""

from __future__ import annotations

import pytest

from speedo.errors import Fault, PayloadError


def refused(fault: Fault) -> pytest.RaisesExc[PayloadError]:
    """A vector is refused inside this context, because of this fault."""
    return pytest.raises(PayloadError, check=lambda error: error.fault == fault)
