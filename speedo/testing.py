"""Contract tests for a strategy or a merge rule of your own, and the simulator's random schedules.

from speedo.testing import check_rule, check_strategy

def test_my_rule() -> None:
    check_rule(MyRule(0.5))

def test_my_strategy() -> None:
    check_strategy(MyStrategy)
"""

from __future__ import annotations

from speedo.study.contracts.rule_contract import check_rule
from speedo.study.contracts.schedules import Schedule, check_strategy, schedule, try_schedule
from speedo.study.contracts.watched_strategy import BrokenStrategyError

__all__ = [
    "BrokenStrategyError",
    "Schedule",
    "check_rule",
    "check_strategy",
    "schedule",
    "try_schedule",
]
