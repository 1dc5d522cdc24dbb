"""Checks a node before a run and names the remedies: `examine` runs all checks that apply, `require` the quick ones."""

from __future__ import annotations

from speedo.study.doctor.base import Finding, NodeRequest
from speedo.study.doctor.preflight import require, require_for

__all__ = ["Finding", "NodeRequest", "examine", "require", "require_for"]


def examine(request: NodeRequest) -> list[Finding]:
    """See `speedo.study.doctor.examination.examine`, which takes a while to import."""
    from speedo.study.doctor import examination

    return examination.examine(request)
