"""Continues a run in the same command when what it runs on has died.

Of an attempt its stores are left, so the next one goes on from the newest center in them (`speedo.run.takeover`), with
new workers. What servers of the center have is in no store of the master's: such a run goes on as with `--resume`, from
its newest checkpoint, and without one it begins anew, in its own directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from speedo.actors.run_stores import RunStores
from speedo.actors.signals import end_as, stop_signals
from speedo.engines.net_trial import CaffeFacts
from speedo.engines.solver import SolverSpec
from speedo.errors import (
    ClusterError,
    ConfigError,
    EngineError,
    FencedError,
    RunInterrupted,
    SpeedoError,
    StoreError,
)
from speedo.exchange.channel import first_line
from speedo.master.restarts import Restarts
from speedo.run.caffe_snapshot import CaffeSnapshot
from speedo.run.config.run_config import RunConfig
from speedo.run.kept_lease import KeptLease
from speedo.run.prepare import PreparedRun, check_nets, prepare
from speedo.run.prepare_script import prepare_script
from speedo.run.result import RunResult
from speedo.run_dir.checkpoint_file import checkpoints_in
from speedo.run_dir.directory import CHECKPOINTS, LOGS
from speedo.run_dir.fence import Fence, claim, epoch_of
from speedo.storage.lease import MasterLease
from speedo.system.daemon_thread import within

Note = Callable[[str], None]
ANSWER_S: Final = 60.0
LOOK_S: Final = 0.1
HEALTHY_S: Final = 15.0
AT_WORK_S: Final = 1.0
# What keeps a run that has begun before from beginning again may pass, as a killed process of a start does.
PASSING: Final = (ClusterError, EngineError, StoreError)


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """A run that this command has followed on another machine, and now has the lease of: `why` says since when.

    `facts` are of its nets as they were built here; a script has none.
    """

    prepared: PreparedRun
    facts: CaffeFacts | None
    lease: KeptLease
    why: str


@dataclass
class Attempt:
    """One attempt at a run. `causes` are those of the restarts before it, `epoch` that of its last master, `lease` that
    of this command, for a run that may have a standby. `followed` is the run that a standby goes on with, whose lease
    it has, `former` that of an attempt before, whose newest center is in its `stores`; `anew_in` is the directory of a
    run that has neither center nor checkpoint. `tried` is the solver whose nets an attempt has built, and what it
    found. What comes to be known of it: the run as it was prepared and its directory, when it began to train, the
    signals that stop it, and whether it has come to its end.
    """

    config: RunConfig
    restarts: Restarts
    causes: tuple[str, ...] = ()
    former: PreparedRun | None = None
    anew_in: Path | None = None
    epoch: int | None = None
    lease: KeptLease | None = None
    followed: FollowedRun | None = None
    tried: tuple[SolverSpec, CaffeFacts] | None = None
    stores: RunStores = field(default_factory=RunStores)
    made: PreparedRun | None = None
    run_dir: Path | None = None
    since: float | None = None
    stopped: list[str] | None = None
    over: bool = False

    def prepared(self, note: Callable[[str], None]) -> PreparedRun:
        """The run, with its directory. Raises `SpeedoError` for what a user can fix."""
        if self.followed is not None:
            prepared = self.followed.prepared
        elif self.former is not None:
            prepared = self.former
        else:
            prepare_it = prepare_script if self.config.own else prepare
            prepared = prepare_it(self.config, note, self.anew_in, bool(self.causes))
        self.made, self.run_dir = prepared, prepared.run_dir
        return prepared

    @property
    def takes_over(self) -> bool:
        """Whether its master goes on from the newest center that another one has left."""
        return self.followed is not None or self.former is not None

    def facts(self, prepared: PreparedRun, scratch: Path) -> CaffeFacts:
        """What `check_nets` finds, or has found before for the same solver."""
        if self.tried is None and self.followed is not None and self.followed.facts is not None:
            return self.followed.facts
        if self.tried is None or self.tried[0] != prepared.spec:
            self.tried = (prepared.spec, check_nets(prepared, scratch))
        return self.tried[1]

    def claims(
        self,
        run_dir: Path,
        *,
        continues: bool,
        lease: Callable[[], tuple[MasterLease, Note]] | None = None,
    ) -> int:
        """The epoch of its next master: 0 in a directory that is new, else above all before.

        `lease` makes that of a run which may have a standby. Raises `FencedError` if another command has taken over the
        run since its last one, which stood still, or has its lease.
        """
        self.require_ours(run_dir)
        if self.lease is not None:
            first = self.followed is not None and self.epoch is None
            self.epoch = claim(run_dir, self.lease.epoch if first else self.lease.next_epoch())
        elif lease is not None:
            made, note = lease()
            epoch = made.claim(least=epoch_of(run_dir) + 1 if continues else 0)
            self.lease = KeptLease(made, note)
            self.epoch = claim(run_dir, epoch) if epoch else 0
        else:
            self.epoch = claim(run_dir) if continues else 0
        return self.epoch

    def require_ours(self, run_dir: Path) -> None:
        """Raises `FencedError` if another command has taken over the run."""
        if self.lease is not None:
            self.lease.check()
        if self.epoch is not None:
            Fence(run_dir, self.epoch, time.monotonic).require()

    @property
    def tries_token(self) -> bool:
        """Whether no attempt of this command has seen yet that Ray wants the token."""
        return self.followed is not None or not self.causes

    def trains(self) -> None:
        """From now on the run counts as begun."""
        self.since = time.monotonic()

    @contextmanager
    def signals(self) -> Iterator[list[str]]:
        """As `stop_signals`, while it trains; a run that was asked to stop, or has its result, is not continued."""
        with stop_signals() as stopped:
            self.stopped = stopped
            yield stopped
        self.over = True


def in_attempts(
    config: RunConfig,
    note: Note,
    once: Callable[[Attempt], RunResult],
    followed: FollowedRun | None = None,
) -> RunResult:
    """The result of a run, which is continued up to `master_restarts` times in a row.

    With `followed` a standby goes on with it.
    """
    restarts = Restarts(config.master_restarts, healthy_s=HEALTHY_S, at_work_s=AT_WORK_S)
    attempt = Attempt(config, restarts)
    if followed is not None:
        attempt = Attempt(
            config, restarts, (followed.why,), lease=followed.lease, followed=followed
        )
    try:
        while True:
            try:
                return once(attempt)
            except PASSING as error:
                attempt = _next(attempt, error, note)
    except BaseException as error:
        if attempt.lease is not None:
            with suppress(StoreError, FencedError):  # it expires, or is another one's
                attempt.lease.end(over=not isinstance(error, PASSING))
        raise
    finally:
        attempt.stores.close()


def _next(attempt: Attempt, error: SpeedoError, note: Callable[[str], None]) -> Attempt:
    """The attempt after this one, once its time has come. Raises the error if there is none."""
    interrupted = isinstance(error, RunInterrupted)
    starts_again = attempt.since is None and bool(attempt.causes)
    run_dir = attempt.run_dir
    if run_dir is None or attempt.stopped or attempt.over or not (interrupted or starts_again):
        raise error
    attempt.require_ours(run_dir)
    # One that has trained had started well: it needs no pause.
    up_s = 0.0 if attempt.since is None else max(time.monotonic() - attempt.since, AT_WORK_S)
    pause_s = attempt.restarts.pause_after(up_s)
    if pause_s is None:
        raise error
    why = error.why if isinstance(error, RunInterrupted) else first_line(error)
    config, former, anew_in = attempt.config, _to_take_over(attempt, run_dir), None
    if former is not None:
        place = "from the newest center"
    elif _has_checkpoint(run_dir):
        place = "from the newest checkpoint"
        config = config.model_copy(update={"resume": run_dir, "run_dir": None, "weights": None})
    else:
        place, anew_in = "from the start, as there is no checkpoint", run_dir
    if former is None:
        attempt.stores.close()
    most = attempt.config.master_restarts
    after = f" in {pause_s:.0f} s" if pause_s else ""
    note(
        f"warning: {why}: the run begins again{after} {place}, restart {attempt.restarts.used} of {most}"
    )
    _wait(pause_s, run_dir, note)
    causes = (*attempt.causes, why)
    return Attempt(
        *(config, attempt.restarts, causes, former, anew_in, attempt.epoch, attempt.lease),
        tried=attempt.tried,
        stores=attempt.stores,
        run_dir=run_dir,
    )


def _to_take_over(attempt: Attempt, run_dir: Path) -> PreparedRun | None:
    """The run for an attempt that goes on from the newest center; None if that is not in its stores.

    A master that does not find it whole takes the newest checkpoint, or the first weights. It knows of no snapshot of
    Caffe's, from which the run may have begun.
    """
    made = attempt.former or attempt.made
    has_one = attempt.takes_over or attempt.since is not None
    if made is None or not has_one or made.config.serves:
        return None
    if isinstance(made.resumed, CaffeSnapshot) and not _has_checkpoint(run_dir):
        return None
    return replace(made, resumed=None, anew=True)


def _wait(pause_s: float, run_dir: Path, note: Callable[[str], None]) -> None:
    due = time.monotonic() + pause_s
    with stop_signals() as stopped:
        while not stopped and (left := due - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_S))
    if stopped:
        note(f"stopped by {stopped[0]}{way_on(run_dir)}")
        end_as(stopped[0])


# ---------------------------------------------------------------- what interrupts a run


@contextmanager
def told_of(prepared: PreparedRun, lost: Callable[[], str | None]) -> Iterator[None]:
    """Turns errors about the master's process, and those that come of what is `lost` on this machine, into ours."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "cause", None) or error  # what Ray brings from an actor has one
        if isinstance(cause, (RunInterrupted, FencedError, ConfigError)):
            raise cause from None
        if why := lost():  # whatever has failed for that
            raise RunInterrupted(why, way_on(prepared.run_dir)) from None
        _tell_in_our_words(error, prepared)
        raise


@contextmanager
def parting(
    *steps: Callable[[], object],
    otherwise: Callable[[], object] = lambda: None,
    has_standby: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Take these steps at the end; only that `otherwise` after an interruption, when nobody would answer, and in a
    command whose run another one has: its hosts join that. One that cannot ask Redis any more does not know whether its
    standby has the run, so its hosts look for that one."""
    at_end = steps
    try:
        yield
    except (RunInterrupted, FencedError):
        at_end = (otherwise,)
        raise
    except StoreError:
        if has_standby():
            at_end = (otherwise,)
        raise
    finally:
        for step in at_end:
            step()


def _tell_in_our_words(error: Exception, prepared: PreparedRun) -> None:
    """Raise what the user can fix or the command can mend; return for a bug."""
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    from speedo.actors.death_causes import cause_in

    run_dir = prepared.run_dir
    match error:
        case RayTaskError(cause=StoreError() as cause) if prepared.settings.redis_is_ours:
            raise RunInterrupted(str(cause)) from None  # it has kept what there was
        case RayTaskError(cause=SpeedoError() as cause):
            raise cause from None
        case RayTaskError(cause=OSError() as cause):
            raise EngineError(f"the master failed: {cause}{way_on(run_dir)}") from None
        case RayTaskError():
            return
        case GetTimeoutError():
            why = f"the master's process did not answer for {ANSWER_S:.0f} s"
        case RayError():  # its process is gone, whatever the kind
            log = run_dir / LOGS / "master.log"
            why = f"the master's process died: {cause_in(log) or 'killed'}; see {log}"
        case _:
            return
    raise RunInterrupted(why, way_on(run_dir)) from None


def way_on(run_dir: Path) -> str:
    """How to continue the run by hand; empty if there is no checkpoint."""
    return f"; continue with --resume {run_dir}" if _has_checkpoint(run_dir) else ""


def _has_checkpoint(run_dir: Path) -> bool:
    try:
        return bool(within(ANSWER_S, lambda: checkpoints_in(run_dir / CHECKPOINTS)))
    except OSError:  # its disk hangs
        return False
