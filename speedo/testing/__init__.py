"""Contract tests for a strategy or a merge rule of your own, and the simulator's random schedules.

from speedo.testing import check_rule, check_strategy

def test_my_rule() -> None:
    check_rule(MyRule(0.5))

def test_my_strategy() -> None:
    check_strategy(MyStrategy)
"""

from __future__ import annotations

from speedo.testing.rule_contract import check_rule
from speedo.testing.schedules import Schedule, check_strategy, schedule, try_schedule
from speedo.testing.watched_strategy import BrokenStrategyError

__all__ = [
    "BrokenStrategyError",
    "Schedule",
    "check_rule",
    "check_strategy",
    "schedule",
    "try_schedule",
]
