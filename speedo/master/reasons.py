"""The driver's reasons for ending a run, a turn or a test, as sentences; times are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ALL_DONE: Final = "every script has ended"
AT_MAX_ITER: Final = "reached max_iter"  # begins the reason if no rule has ended the run earlier
ALL_TRAINED: Final = "every record of every epoch is trained"
RUN_OVER: Final = "the run is over"  # why a result that came, or was held, is not merged
OVERDUE: Final = "much longer than any turn so far"


def too_few_joined(live: int, wanted: int, waited_s: float) -> str:
    """Why a run ended before its first turn."""
    return f"only {live} of {wanted} workers joined within {waited_s:.0f} s"


def too_few_left(live: int, needed: int, waited_s: float) -> str:
    """Why a run ended that had lost its workers."""
    text = f"{live} workers were left, {needed} are needed, and none joined within {waited_s:.0f} s"
    remedy = "; go on with --resume, with as many workers or a smaller --min-workers"
    return text + remedy * (needed > 1)


def waits_for_workers(live: int, needed: int) -> str:
    """Why nothing is trained and merged."""
    return f"waits for workers: {live} of at least {needed} are there"


def turn_overdue(waited_s: float) -> str:
    """Why a worker was evicted."""
    return f"no result for {waited_s:.0f} s, {OVERDUE}"


def not_heard(host: str, silent_s: float) -> str:
    """What is said of a host none of whose workers may be at fault."""
    return f"nothing was heard of host {host} for {silent_s:.0f} s: its link is down, or the machine stands still"


def heard_again(host: str) -> str:
    """What is said of it later."""
    return f"host {host} is heard of again"


def pauses_too_long(waited_s: float) -> str:
    """Why a worker was evicted that took part in no turn, as in a test of its script."""
    return f"its script made no step and tested for {waited_s:.0f} s, the --timeout"


def team_given_up(workers: Sequence[int], why: str, *, spans: bool) -> str:
    """What becomes of a team that never came to a result; `spans`: over several hosts."""
    text = f"workers {', '.join(map(str, workers))} cannot work as one team ({why})"
    if not spans:
        return f"{text}: each reports to the master from now on"
    return (
        f"{text}: from now on those of each host are a team, and the master merges, which is slower; let every host "
        "connect to every other one, and start the run again with --resume"
    )


def silent_tester(waited_s: float) -> str:
    """Why a test has no metrics."""
    return (
        f"the tester has finished no batch for {waited_s:.0f} s: it hangs, or a batch takes too long; "
        "give the test net a smaller batch_size, or raise --timeout"
    )


def busy_tester(versions: int) -> str:
    """Why a version was not tested."""
    return (
        f"skipped, because {versions} tests before it are not done yet; test less often, or use more testers "
        "(--test-interval testers=N)"
    )
