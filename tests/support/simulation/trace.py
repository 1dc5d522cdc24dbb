"""A readable transcript of a run, a line for each event and action; equal runs give equal bytes."""

from __future__ import annotations

from speedo.messages import (
    Action,
    Checkpointed,
    Divided,
    Drop,
    Elapsed,
    Evaluate,
    Event,
    Finish,
    Joined,
    KeepBest,
    Left,
    Merge,
    Refused,
    SetAside,
    Snapshot,
    StopAsked,
    TeamGivenUp,
    Tested,
    Train,
    Trained,
    Waiting,
)


class Trace:
    """Implements `speedo.master.observers.Observer`; without `keep` nothing is kept."""

    def __init__(self, keep: bool = True) -> None:
        self.lines: list[str] | None = [] if keep else None

    def saw(self, event: Event, now: float) -> None:
        """A line for an event."""
        if self.lines is None:
            return
        match event:
            case Joined():
                text = f"worker {event.worker}.{event.incarnation} joins"
            case Left():
                text = f"worker {event.worker}.{event.incarnation} leaves: {event.cause}"
            case Trained():
                text = (
                    f"worker {event.worker}.{event.incarnation} trained ticket {event.ticket}, "
                    f"{event.samples} samples, loss {event.loss:.3f}"
                )
            case Tested():
                text = f"version {event.version} tested: {event.problem or dict(event.metrics)}"
            case Refused():
                who = f"{event.worker}.{event.incarnation}"
                text = f"worker {who} failed ticket {event.ticket}: {event.reason}"
            case Elapsed():
                text = f"trained for {event.seconds:.4g} s"
            case StopAsked():
                text = f"stop asked: {event.reason}"
            case Checkpointed():
                text = f"checkpoint of version {event.version}: {event.problem or 'written'}"
            case _:
                text = str(event)
        self.lines.append(f"{now:10.4f}  > {text}")

    def did(self, action: Action, now: float) -> None:
        """A line for an action."""
        if self.lines is None:
            return
        match action:
            case Train():
                base = "own weights" if action.moving_rate is not None else "center"
                text = (
                    f"train worker {action.worker}.{action.incarnation} ticket {action.ticket} from "
                    f"{base} {action.version}, {action.steps} steps at iteration {action.iteration}"
                )
            case Merge():
                parts = ", ".join(
                    f"{part.worker}#{part.ticket} (staleness {part.staleness})"
                    for part in action.parts
                )
                made = f"version {action.version}, iteration {action.iteration}"
                text = f"merge {parts} x {action.rate:.4g} -> {made}"
            case Drop():
                text = f"{action.decision} {action.worker}#{action.ticket}: {action.reason}"
            case SetAside():
                text = f"set worker {action.worker}.{action.incarnation} aside: {action.reason}"
            case Divided():
                text = action.reason
            case TeamGivenUp():
                text = f"give up the team of workers {action.workers}: {action.reason}"
            case Waiting():
                text = action.problem or "enough workers are back"
            case Finish():
                text = f"finish, {'complete' if action.complete else 'incomplete'}: {action.reason}"
            case Evaluate():
                text = f"test version {action.version}, iteration {action.iteration}"
            case KeepBest():
                text = f"keep version {action.version}: {action.output} {action.value:.6g} is the best so far"
            case Snapshot():
                text = f"snapshot of version {action.version}, iteration {action.iteration}"
        self.lines.append(f"{now:10.4f}  < {text}")

    def text(self) -> str:
        """All lines, with a line feed after each."""
        return "\n".join(self.lines or []) + "\n"
