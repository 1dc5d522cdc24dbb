"""The checks of the machine, a file for each subject. A file that declares `CHECKS` is found here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from caffenets.declared import declared_in
from speedo.study.doctor.base import Check, Finding, NodeRequest, Stage

CHECKS: Final[tuple[Check, ...]] = tuple(
    check for checks in declared_in(__name__, "CHECKS") for check in checks
)


def findings(request: NodeRequest, stage: Stage) -> Iterator[Finding]:
    """What the checks of this stage find."""
    for check in CHECKS:
        if check.stage == stage:
            yield from check.find(request)


def quick_findings(request: NodeRequest) -> Iterator[Finding]:
    """What those find that are made before each run."""
    for check in CHECKS:
        if check.quick:
            yield from check.find(request)
