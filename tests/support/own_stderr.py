"""The standard error of the tests' process, which `capture_stderr` takes."""

from __future__ import annotations

import os
import sys

from speedo.engines.native_failures import _Patient


def restore_stderr(former: int) -> None:
    """Undo `capture_stderr`, which has returned this descriptor."""
    sys.stderr.flush()
    if isinstance(getattr(sys.stderr, "buffer", None), _Patient):
        sys.stderr = sys.__stderr__
    os.dup2(former, 2)
    os.close(former)
