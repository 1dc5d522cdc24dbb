"""Teams in the simulator: their turns step by step, all members together, with faults at every meeting."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import suppress

from speedo.errors import PayloadError, StoreError, TeamBrokenError
from speedo.exchange.channel import refusal
from speedo.messages import Refused, Team, Train, Trained
from speedo.worker.team_turn import TeamMemory, team_rounds
from speedo.worker.turn import Worker

Answer = Trained | Refused


def train_together(
    team: Team,
    workers: Mapping[int, Worker],
    commands: Mapping[int, Train],
    stops_after: Mapping[int, int],
    not_finite: Collection[int] = (),
) -> dict[int, Answer]:
    """What each member answers. `stops_after` says at which meeting (0: the first) a member is no longer there.

    The first payload of those in `not_finite` is not.
    A member without a command, or that stops, answers nothing; the others then say that the team is broken.
    """
    present = [worker for worker in team.workers if worker in commands and worker in workers]
    size = workers[present[0]].engine.layout.size
    members = len(team.members)
    memory = TeamMemory.over(bytearray(TeamMemory.bytes_for(members, size)), members, size)
    running: dict[int, Generator[None, None, Trained]] = {
        worker: team_rounds(workers[worker], commands[worker], memory) for worker in present
    }
    answers: dict[int, Answer] = {}
    gone = next((worker for worker in team.workers if worker not in running), None)
    meeting = 0
    while running:
        for worker in list(running):
            if stops_after.get(worker) == meeting:
                del running[worker]
                gone = worker
                continue
            try:
                next(running[worker])
            except StopIteration as done:
                answers[worker] = done.value
                del running[worker]
            except (PayloadError, StoreError, TeamBrokenError) as error:
                answers[worker] = refusal(commands[worker], error)
                del running[worker]
                gone = worker
        if meeting == 1:
            for worker in not_finite:
                memory.flags[team.workers.index(worker)] = 1
        meeting += 1
        if gone is not None:
            broken = TeamBrokenError(f"worker {gone} has left the team")
            for worker in running:
                answers[worker] = refusal(commands[worker], broken)
            for rounds in running.values():
                with suppress(RuntimeError):
                    rounds.close()
            break
    return answers
