"""The nouns of a run: events that reach the master, actions that the coordinator answers with.

All are frozen and small. Weights and payloads travel through the store, under keys that these imply (`storage.keys`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field

from speedo.system.records import record
from speedo.system.runs_at import RunsAt


class Kind(enum.IntEnum):
    """The kind of a vector; the numbers are part of the format."""

    CENTER = 1
    DELTA = 2
    WEIGHTS = 3
    GRADIENT = 4
    HISTORY = 5


# Ranges of records in the order of an epoch: epoch, first, and the one behind the last.
Records = tuple[tuple[int, int, int], ...]


@record
class Joined:
    """A worker has loaded its model and can train; `samples_per_step` is its batch (x iter_size).

    `depth` is how many turns it may have at once: more than one in modes that merge every result as it comes, whose
    strategies then speak of workers with room for one more turn. `meets` names the memory that it shares with others of
    its host, to sum with them as a team; empty if it can be in none. It is `near` on the master's machine. `lost` is
    what it could not restore. `handed` comes right after this: a former master's turn, from center `begun`.
    """

    worker: int
    incarnation: int
    samples_per_step: int
    depth: int = 1
    meets: str = ""
    runs_at: RunsAt | None = None
    lost: str = ""
    near: bool = False
    handed: Trained | None = None
    begun: int = 0


@record
class Left:
    """A worker is gone; `cause` is a sentence for people. `done`: its work is, a script that has come to its end."""

    worker: int
    incarnation: int
    cause: str
    done: bool = False


@record
class Pause:
    """A script gives back its turn, and takes part in no other until one that is `over`; it `tests` the center then."""

    worker: int
    incarnation: int
    over: bool = False
    tests: bool = False


@record
class Leaving:
    """A worker is to leave, for this `cause`: it gets no other turn, and hands in what it has of its present ones."""

    worker: int
    incarnation: int
    cause: str


@record
class Trained:
    """A turn is finished and its payload is in the store. `loss` is the mean over its steps, `losses` that of rounds.

    `timings` are seconds: fetch, compute, publish; in a team `team`: waiting for others, summing; of it `wait`: for
    slower ones. In a team only the leader `has_payload`; a few have if it ended early, `broken` for this reason. A
    script may say no loss: it is NaN then, without `has_loss`. One that `pauses` takes no turn until that is over.
    """

    worker: int
    incarnation: int
    ticket: int
    loss: float
    samples: int
    timings: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    has_payload: bool = True
    has_loss: bool = True
    records: Records = ()
    pauses: bool = False
    broken: str = ""


@record
class Refused:
    """A payload that cannot be merged; without `blame` the worker is not at fault, as when the store lost its data."""

    worker: int
    incarnation: int
    ticket: int
    reason: str
    blame: bool = True


@record
class Tested:
    """The tester's answer for one version: its metrics, or the reason why there are none."""

    version: int
    metrics: Mapping[str, float]
    problem: str = ""


@record
class Testing:
    """This many of the `batches` of a version's test are done by all testers together."""

    __test__ = False  # pytest takes the name for a test's
    version: int
    done: int
    batches: int


@record
class Elapsed:
    """The run has trained for this many seconds in all, those before it was resumed included."""

    seconds: float


@record
class StopAsked:
    """Somebody wants the run to end, within so many seconds if not 0; what is merged so far is exported."""

    reason: str
    within_s: float = 0.0


@record
class StateSaved:
    """A worker's solver history is in the store, for the checkpoint or snapshot of this version.
    `batches` of `batch_size` records were read by then of shard `rank` of `count`. With a `problem` there is nothing.
    """

    worker: int
    incarnation: int
    version: int
    batches: int = 0
    rank: int = 0
    count: int = 1
    batch_size: int = 0
    problem: str = ""


@record
class Checkpointed:
    """A checkpoint of these `bytes`, 0 if none, and workers' `histories`; `problem` is why none, or what it lacks."""

    version: int
    iteration: int
    seconds: float
    bytes: int
    problem: str = ""
    histories: tuple[int, ...] = ()


@record
class Snapshotted:
    """A snapshot of Caffe's kind is on the disk, or the `problem` that kept a file of it from there."""

    version: int
    iteration: int
    problem: str = ""


@record
class StoreTrouble:
    """The store does not do what it is asked, or does again; `problem` is empty then."""

    problem: str


Event = (
    Joined | Left | Leaving | Pause | Trained | Refused | Tested | Testing | Elapsed | StopAsked | StateSaved
    | Checkpointed | Snapshotted | StoreTrouble
)  # fmt: skip


@record
class OwnResults:
    """What became of a worker's own results before its turn, by their tickets; 0 is none.
    `merged` is the one whose merge made the turn's center, for elastic averaging and a team that carries its own center
    on. `pending` is on its way and not in this center; `rate` is the factor by which the master will merge it.
    """

    merged: int = 0
    pending: int = 0
    rate: float = 1.0


NO_RESULTS = OwnResults()


@record
class Team:
    """The workers that do this turn together: `rounds` rounds, after each of which they sum.

    `members` are worker, incarnation and samples of a step, in the order of summing; the first leads: it fetches the
    center and publishes the result of all. `formed` is a ticket that names this gathering: as long as it is the same,
    the members continue with the connections that they have. `rate` is the factor of the mean after each round, where
    there are several; the team then carries its own center on, and publishes that. `patience_s` bounds each wait.
    `spread` are the places in `members` of those that share memory, the leader's host first; empty if all are on one.
    After each `agree_every` rounds, if not 0, they ask who leaves. The master expects it to take `seconds`, if not 0.
    """

    formed: int
    members: tuple[tuple[int, int, int], ...]
    rounds: int = 1
    rate: float = 1.0
    patience_s: float = 60.0
    spread: tuple[tuple[int, ...], ...] = ()
    agree_every: int = 0
    seconds: float = 0.0

    @property
    def leader(self) -> int:
        return self.members[0][0]

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(worker for worker, _, _ in self.members)


@record
class Tuning:
    """Solver values of a phase; None is the solver's own. Each step takes the mean gradient of `batches` batches."""

    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    batches: int = 1


NO_TUNING = Tuning()


@record
class Train:
    """Command to a worker: one turn of `steps` solver steps; in a team, of this many in each of its rounds.

    Without `moving_rate` the turn starts from center `version`. With it the worker continues from its own weights
    (elastic averaging), after its half of the merge that made this center: that of its result `own.merged`, if there is
    one, at this rate. Step `k` of the turn belongs to iteration `iteration_of(k)`: `samples` are those merged before
    the turn, `stride` those that one step of all workers adds, and `batch` of them are an iteration. With `carry_over`
    its payload makes up for what the compression of the last ones, now merged, has lost. The worker adds a pending
    delta to the center itself, times `own.rate`; its weights are pulled a turn later, by what that merge took of them.
    With a `norm` above 0 the turn ends after the first step at which what it gathered has a larger L2 norm, at most
    after `steps`. It trains on `records`, where they are leased; `ahead` as many come next. `division`: see `Divided`.
    """

    worker: int
    incarnation: int
    ticket: int
    version: int
    samples: int
    steps: int
    stride: int
    payload: Kind
    moving_rate: float | None = None
    carry_over: bool = False
    own: OwnResults = NO_RESULTS
    team: Team | None = None
    tuning: Tuning = NO_TUNING
    norm: float = 0.0
    batch: int = 1
    records: Records = ()
    ahead: int = 0
    division: int = 0

    def iteration_of(self, step: int) -> int:
        """The iteration of step number `step` of the turn, counted through all rounds of a team."""
        return (self.samples + step * self.stride) // self.batch

    @property
    def iteration(self) -> int:
        return self.iteration_of(0)

    @property
    def all_steps(self) -> int:
        """Solver steps of the whole turn, at most; of one with several batches these."""
        rounds = 1 if self.team is None else self.team.rounds
        return self.steps * rounds * self.tuning.batches


@record
class Part:
    """One result in a merge, of so many solver `steps`. `summed_by`: whose payload has it summed in, if not its own."""

    worker: int
    incarnation: int
    ticket: int
    samples: int
    staleness: int
    loss: float
    losses: tuple[float, ...] = ()
    summed_by: int | None = None
    steps: int = 0
    records: Records = ()


@record
class Merge:
    """Merge these results into the center, which becomes `version` at `iteration`, and publish it.

    `rate` is the factor of the rule: delta scale or moving rate. `samples_seen` includes this merge. `timings` are
    filled in when it is carried out: for each part the seconds to receive, to merge, and to publish the center.
    """

    version: int
    iteration: int
    samples_seen: int
    rate: float
    parts: tuple[Part, ...]
    timings: tuple[Mapping[str, float], ...] = field(default=(), compare=False)


@record
class Drop:
    """A result that is not merged, and why: `discarded` (by the mode), `late`, `refused`."""

    worker: int
    incarnation: int
    ticket: int
    decision: str
    reason: str
    staleness: int = 0
    loss: float = float("nan")


@record
class SetAside:
    """Let this worker go: it sent bad results again and again."""

    worker: int
    incarnation: int
    reason: str


@record
class TeamGivenUp:
    """These workers cannot work as one team, for the last of several reasons, and do not try again in this run."""

    workers: tuple[int, ...]
    reason: str


@record
class Waiting:
    """Too few workers are there to make a step, as `problem` says; empty once enough are back."""

    problem: str


@record
class Divided:
    """From now on `workers` read these `records` of the batch, of `unit` samples each; `samples` are merged so far."""

    workers: tuple[int, ...]
    records: tuple[int, ...]
    samples: int
    reason: str
    unit: int = 1


@record
class Evaluate:
    """Command to the tester: score this version."""

    version: int
    iteration: int


@record
class SaveState:
    """Command to a worker: write its solver history to the store, for the checkpoint or snapshot of this version."""

    worker: int
    incarnation: int
    version: int


@record
class Snapshot:
    """Write the center of this version as a `.caffemodel`, and a `.solverstate` beside it."""

    version: int
    iteration: int


@record
class KeepBest:
    """Write this tested version as the best so far, by its `output`; `problem` is what kept it from the disk."""

    version: int
    iteration: int
    output: str
    value: float
    higher: bool  # of this output a higher value is better
    problem: str = ""


@record
class Finish:
    """The run is over; `complete` says whether its work was done."""

    complete: bool
    reason: str
    trained_again: int = 0  # records whose result was not merged
    left_out: int = 0  # those that nobody trained again


Command = Train | Evaluate | SaveState
Changes = Merge | Drop | Divided | Snapshot | KeepBest | SetAside | TeamGivenUp | Waiting | Finish
Action = Changes | Train | Evaluate


@record
class Result:
    """What a strategy sees of a finished turn."""

    worker: int
    samples: int
    staleness: int


@record
class Decision:
    """What a strategy wants, worker by worker; carried out in this order.

    `why` is the cause of the discards. All in `merge` make one version. `may_wait`: results here come before `train`.
    """

    discard: tuple[int, ...] = ()
    merge: tuple[int, ...] = ()
    train: tuple[int, ...] = ()
    why: str = field(default="", compare=False)
    may_wait: bool = field(default=False, compare=False)


NOTHING = Decision()
