"""What a run answers to `speedo status`, `stop`, `scale` and `leave`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import ray
from ray.exceptions import RayError

from speedo.actors.join.asked_to_leave import seconds_in
from speedo.actors.master_process import MasterProcess
from speedo.actors.ray_errors import meaning_of, raised_by, why
from speedo.errors import ClusterError, Meaning, SpeedoError
from speedo.run.config.run_config import LARGEST_WORKERS
from speedo.system.bounds import said
from speedo.system.json_lines import plain
from speedo.version import VERSION
from speedo.watch.console import Watch
from speedo.watch.control_socket import Asked, ControlServer
from speedo.watch.status import Status

ANSWER_S: Final = 20.0
SCALE_S: Final = 150.0  # workers may be started meanwhile
STOPPED: Final = "stopped by `speedo stop`"


@contextmanager
def under_control(
    master: MasterProcess,
    known: Mapping[str, Any],
    watch: Watch,
    scale: Callable[[int], str] | None = None,
) -> Iterator[None]:
    """Serve `speedo status` and its like inside the context; if no socket can be opened the run continues.

    `known` is what `speedo status` says of the run before its state; `scale` changes the number of workers, which
    otherwise the master does.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(ControlServer(known["run"], Control(master, known, scale).answer))
        except (SpeedoError, OSError) as error:
            watch.note(
                f"warning: `speedo status` and `speedo stop` will not find this run: {error}"
            )
        yield


class Control:
    """Answers the requests of one run; called from several threads."""

    def __init__(
        self,
        master: MasterProcess,
        known: Mapping[str, Any],
        scale: Callable[[int], str] | None = None,
    ) -> None:
        self._master, self._known, self._scale = master, known, scale

    def answer(self, asked: Asked) -> dict[str, Any]:
        """The answer to one question; raises `SpeedoError` with the reason why there is none."""
        what, rest = asked.get("ask"), {name for name in asked if name != "ask"}
        if what == "known" and not rest:  # also of a master that hangs
            return dict(self._known)
        if what == "status" and not rest:
            return self._status()
        if what == "stop" and not rest:
            self._master.asked_to_stop = STOPPED
            self._ask("stop", STOPPED)
            return self._status()
        if what == "scale" and rest == {"workers"}:
            number = asked["workers"]
            # `true` is a number to Python, and so would be to the hosts.
            if type(number) is not int or not 1 <= number <= LARGEST_WORKERS:
                raise ClusterError(
                    f"{said(number)} workers are not possible: use a whole number from 1 to {LARGEST_WORKERS}; "
                    "`speedo stop` ends the run"
                )
            scale = self._scale or partial(self._ask, "scale", timeout_s=SCALE_S)
            return {"run": self._known["run"], "workers": number, "said": scale(number)}
        if what == "leave" and rest == {"host", "seconds"}:
            if self._scale is not None:
                raise ClusterError(
                    "the nodes of this run are those of a Ray cluster: `speedo scale` takes workers away, and Ray "
                    "drains a node"
                )
            told = self._ask("tell_to_leave", str(asked["host"]), seconds_in(asked))
            return {"run": self._known["run"], "said": told}
        raise ClusterError(
            f"this run, of SpeeDO {VERSION}, does not know this request: "
            "use the same version of SpeeDO for the command"
        )

    def _status(self) -> dict[str, Any]:
        status: Status = self._ask("status")
        per_second = status.iteration / status.seconds if status.seconds > 0 else 0.0
        left = max(status.max_iter - status.iteration, 0)
        return {
            **self._known,
            "remaining_s": left / per_second if status.max_iter and per_second > 0 else None,
            **{name: getattr(status, name) for name in status.__slots__},
            "servers": [plain(one) for one in status.servers],
            "workers": [{**plain(one), "away": one.is_away} for one in status.workers],
        }

    def _ask(self, method: str, *arguments: Any, timeout_s: float = ANSWER_S) -> Any:
        try:
            return ray.get(
                getattr(self._master.actor, method).remote(*arguments), timeout=timeout_s
            )
        except AttributeError:
            raise ClusterError(f"this run knows no `speedo {method}`") from None
        except (RayError, RuntimeError) as error:  # the last while Ray is being shut down
            raised = raised_by(error)
            if isinstance(raised, SpeedoError):
                raise raised from None
            if raised is not None:
                raise ClusterError(f"the master failed: {why(error)}") from None
            if meaning_of(error) is Meaning.AGAIN:
                raise ClusterError(
                    f"the master did not answer within {timeout_s:.0f} s: try again"
                ) from None
            raise ClusterError(f"the master is gone: {why(error)}") from None
