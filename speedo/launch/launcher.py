"""One launch: connects to every host, examines all, starts the master and then the others, and ends them together."""

from __future__ import annotations

import os
import queue
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from speedo.actors.signals import stop_signals
from speedo.actors.token import TOKEN_VARIABLE, new_token
from speedo.errors import ClusterError, ConfigError, MachineError, SpeedoError
from speedo.launch.cluster import is_here, variables
from speedo.launch.commands import (
    DOCTOR,
    LEFT,
    MASTER,
    SERVER,
    WORKER,
    Plan,
    in_words,
    roles,
)
from speedo.launch.connection import WAITING, Connection, Happened
from speedo.launch.host_files import HOSTS, HostFiles
from speedo.launch.picture import PROGRESS, Picture
from speedo.launch.protocol import BEAT_S, EventError
from speedo.launch.remote import Command, Remote, failures, greeting_problem

LOOK_S: Final = 0.2
SILENT_S: Final = 40.0  # to start Python there
EXAMINE_S: Final = 120.0
NAMED_S: Final = (
    16.0  # after the start: a host that has failed is named, though others are still examined
)
FAREWELL_S: Final = 20.0  # for workers to leave after their master
FETCH_S: Final = 25.0  # for the logs of a host whose connection was lost
END_S: Final = 75.0  # for commands that were asked to end; the hosts force it before
HARD_END_S: Final = 8.0
_HOW_TO_JOIN: Final = re.compile(r"; on each node,.*")  # which is done already
_SIGNALS: Final = {"Ctrl-C": "SIGINT", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
_STATUS: Final = {"SIGTERM": 143, "SIGHUP": 129}


class Launcher:
    """Runs a plan; `said` gets the lines that the master prints to standard output."""

    def __init__(self, plan: Plan, picture: Picture, said: Callable[[str], None]) -> None:
        self._plan, self._picture, self._said = plan, picture, said
        self._events: queue.Queue[Happened] = queue.Queue(WAITING)
        self._remotes: dict[str, Remote] = {}
        self._token = new_token()
        # The master's host tells those of a solver.
        self._facts = '{"facts": {}}' if plan.command else None
        self._address = ""
        self._began = False  # whether the run has made its first iteration
        self._stopped: list[str] = []
        self._ending = False
        self._named: set[str] = set()
        self._next_beat = 0.0
        self._start = time.monotonic()

    def run(self) -> int:
        """The status of the master. Raises `MachineError` with every host that cannot take part."""
        cluster = self._plan.cluster
        ways = cluster.access()
        if (self._plan.local_dir / HOSTS).exists():
            raise ConfigError(
                f"{self._plan.local_dir / HOSTS} has logs of another launch; give another --run-dir, or move it away"
            )
        environments = {name: variables(way.env, os.environ) for name, way in ways.items()}
        environments[cluster.leader].update(self._plan.secrets)
        for name in ways:
            self._picture.host(name, in_words(self._plan, name))
        signal.signal(
            signal.SIGTSTP, signal.SIG_IGN
        )  # hosts would take a stopped launcher for lost
        hard = True
        with self._master_heard(), self._picture, stop_signals() as self._stopped:
            try:
                for name, way in ways.items():
                    connection = Connection(name, way, cluster.ssh_config, self._events)
                    self._remotes[name] = Remote(connection)
                self._greet()
                self._examine(environments)
                status = self._train(environments)
                hard = False
                return status
            finally:
                self._end(hard)

    @contextmanager
    def _master_heard(self) -> Iterator[None]:
        """What the master prints to standard output follows the picture."""
        yield
        for line in self._remotes[self._plan.cluster.leader].commands[MASTER].out:
            self._said(line)

    # ---------------------------------------------------------------- before training

    def _greet(self) -> None:
        """Every host has answered, with our version."""
        remotes = self._remotes.values()

        def over() -> bool:
            done = all(one.hello or one.closed is not None for one in remotes)
            if not done:
                self._name({name: one.closed or "" for name, one in self._remotes.items()})
            return done

        self._wait(over, SILENT_S)
        python = (self._remotes[self._plan.cluster.leader].hello or {}).get("python")
        problems = {}
        for name, remote in self._remotes.items():
            if problem := greeting_problem(remote, python):
                problems[name] = problem
        self._refuse(problems)
        self._address = self._master_address()

    def _master_address(self) -> str:
        """Where the others reach the master: --host, or what ssh shows of the connections."""
        plan, leader = self._plan, self._plan.cluster.leader
        if plan.host is not None:
            return plan.host
        others = [name for name in self._remotes if name != leader and not is_here(name)]
        if plan.leads_here:
            seen = (self._remotes[name].launcher_address for name in others)
            address = next(filter(None, seen), None) if others else "127.0.0.1"
        else:
            address = self._remotes[leader].address
        if not address or (others and (address.startswith("127.") or address == "::1")):
            raise ClusterError(
                f"the address of the master's host {leader} is not known to the others (here it is "
                f"{address or 'unknown'}): give --host ADDRESS"
            )
        return address

    def _examine(self, environments: Mapping[str, Mapping[str, str]]) -> None:
        """`speedo doctor` on every host; the others get the master's solver and record count from its own."""
        leader = self._plan.cluster.leader
        self._start_command(leader, DOCTOR, environments)
        first = self._remotes[leader].commands[DOCTOR]
        self._wait(
            lambda: self._facts is not None or first.status is not None or self._lost(), EXAMINE_S
        )
        for name in self._remotes:
            if name != leader:
                self._start_command(name, DOCTOR, environments, self._facts or '{"facts": {}}')

        def over() -> bool:
            done = all(self._examined(one) for one in self._remotes.values())
            if not done:
                self._name({name: _failure(one) for name, one in self._remotes.items()})
            return done

        self._wait(over, EXAMINE_S)
        late = f"`speedo doctor` did not end within {EXAMINE_S:.0f} s; run it there"
        problems = {
            name: _failure(one) if self._examined(one) else late
            for name, one in self._remotes.items()
        }
        self._refuse({name: problem for name, problem in problems.items() if problem})

    def _name(self, problems: Mapping[str, str]) -> None:
        """Say which hosts have failed where the others take long: they may fail, too, and are waited for."""
        if time.monotonic() - self._start < NAMED_S:
            return
        for name, problem in problems.items():
            if problem and name not in self._named:
                self._named.add(name)
                first = problem.splitlines()[0]
                self._picture.note(f"{name}: {first}; waiting for the other hosts")

    def _lost(self) -> bool:
        return any(one.closed is not None for one in self._remotes.values())

    def _examined(self, remote: Remote) -> bool:
        return remote.closed is not None or remote.commands[DOCTOR].status is not None

    def _refuse(self, problems: Mapping[str, str]) -> None:
        if problems:
            raise MachineError(
                f"{name}: {line}" for name, text in problems.items() for line in text.splitlines()
            )

    # ---------------------------------------------------------------- training

    def _train(self, environments: Mapping[str, Mapping[str, str]]) -> int:
        plan, leader = self._plan, self._plan.cluster.leader
        for name, remote in self._remotes.items():
            remote.files = HostFiles(plan.local_dir, name)
        where = "" if plan.leads_here else f" on {leader}"
        self._picture.note(
            f"{len(self._remotes)} hosts are ready; run directory {plan.there_dir}{where}, logs of all hosts in "
            f"{plan.local_dir / HOSTS}"
        )
        self._start_command(leader, MASTER, environments)
        for role in (SERVER, WORKER):
            for name in self._remotes:
                if role in roles(plan, name, self._address):
                    self._start_command(name, role, environments)
        try:
            status = self._follow(self._remotes[leader])
        except SpeedoError:
            self._let_go(0.0)
            raise
        self._let_go(FAREWELL_S if status == 0 else 3.0)
        return status

    def _follow(self, remote: Remote) -> int:
        """The status of the master once it has ended. Raises `SpeedoError` if it cannot begin, or is lost."""
        plan, leader = self._plan, self._plan.cluster.leader
        master = remote.commands[MASTER]
        told = False
        while master.status is None:
            self._step()
            if self._stopped and not told:
                told = True
                self._picture.note(
                    f"{self._stopped[0]}: the master stops; Ctrl-C again ends all at once"
                )
                remote.connection.send(stop=MASTER, signal=_SIGNALS[self._stopped[0]])
            if remote.closed is not None and master.status is None:
                raise ClusterError(
                    f"the connection to the master's host {leader} was lost ({remote.closed}); its run was ended "
                    f"there: continue with --resume {plan.there_dir}"
                )
            if not self._began and not told:
                self._refuse(self._failed_before_training())
        return master.status if master.status >= 0 else 128 - master.status

    def _failed_before_training(self) -> dict[str, str]:
        """Hosts whose workers or server ended before the first iteration: the master would wait for them in vain."""
        found = {}
        for name, remote in self._remotes.items():
            for role, command in remote.commands.items():
                if role not in (WORKER, SERVER):
                    continue
                if remote.closed is not None and command.status is None:
                    found[name] = f"the connection was lost: {remote.closed}"
                elif command.status:
                    found[name] = f"`speedo {role}` {command.end}"
        return found

    def _let_go(self, seconds: float) -> None:
        """Workers leave with their run, and all logs come; those that stay are asked to end."""
        self._wait(self._all_filed, seconds, interruptible=False)
        for remote in self._remotes.values():
            for role, command in remote.commands.items():
                if command.status is None:
                    remote.connection.send(stop=role, signal="SIGTERM")
        self._wait(self._all_filed, END_S, interruptible=False)
        self._fetch_from_lost()
        for name, remote in self._remotes.items():
            if remote.files is not None:
                remote.files.text("ssh.log", remote.connection.errors)
                if remote.files.problem:
                    self._picture.note(f"warning: logs of {name}: {remote.files.problem}")

    def _fetch_from_lost(self) -> None:
        """Connect once more to hosts whose connection was lost, for the logs of what ran there."""
        self._ending = True
        lost = [
            one
            for one in self._remotes.values()
            if one.closed is not None and one.files and not one.connection.rejected
        ]
        for remote in lost:
            old = remote.connection
            if remote.files is not None:
                remote.files.text("ssh.log", old.errors)
                remote.files.begin_again()
            remote.hello = remote.closed = None
            config = self._plan.cluster.ssh_config
            remote.connection = Connection(old.name, old.access, config, self._events)
            for role, command in remote.commands.items():
                if not command.filed:
                    wanted = {key: command.order.get(key) for key in ("directory", "collect")}
                    wanted["collect"] = wanted["collect"] or ()
                    remote.connection.send(fetch=role, folder=command.folder, **wanted)
        self._wait(self._all_filed, FETCH_S if lost else 0, interruptible=False)
        for remote in lost:
            if remote.closed is not None:
                self._picture.note(f"warning: logs of {remote.connection.name}: {remote.closed}")

    def _all_filed(self) -> bool:
        return all(
            command.filed or remote.closed is not None
            for remote in self._remotes.values()
            for command in remote.commands.values()
        )

    # ---------------------------------------------------------------- events

    def _start_command(
        self, name: str, role: str, environments: Mapping[str, Mapping[str, str]], text: str = ""
    ) -> None:
        """Start one; the token goes with it, through the connection's standard input."""
        remote = self._remotes[name]
        way = remote.connection.access
        directory = way.directory or (str(Path.cwd()) if is_here(name) else None)
        values: dict[str, Any] = {
            "argv": list(roles(self._plan, name, self._address)[role]),
            "env": {**environments[name], TOKEN_VARIABLE: self._token},
            "input": text,
            "directory": directory,
        }
        if role in (WORKER, SERVER):
            values["log_option"] = "--logs"
        elif role == MASTER and not self._plan.leads_here:
            values["collect"] = [f"{self._plan.there_dir}/{part}" for part in LEFT]
        remote.commands[role] = Command(order=values)
        remote.connection.send(start=role, **values)
        self._picture.state(name, f"{role} is starting" if role != DOCTOR else "being examined")

    def _wait(
        self, until: Callable[[], bool], seconds: float, *, interruptible: bool = True
    ) -> None:
        """Return when it holds, or after this many seconds."""
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            self._step()
            if self._stopped and interruptible:
                if self._stopped[0] == "Ctrl-C":
                    raise KeyboardInterrupt
                raise SystemExit(_STATUS[self._stopped[0]])

    def _step(self) -> None:
        """Take what has happened, and show the hosts that we are still here."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            for remote in self._remotes.values():
                if remote.closed is None:
                    remote.connection.send(beat=True)
        try:
            happened = self._events.get(timeout=LOOK_S)
            while True:
                self._take(happened.host, happened.values)
                happened = self._events.get_nowait()
        except queue.Empty:
            return

    def _take(self, name: str, values: Mapping[str, Any]) -> None:
        try:
            self._take_event(name, self._remotes[name], values)
        except EventError as error:
            self._remotes[name].connection.reject(str(error))

    def _take_event(self, name: str, remote: Remote, values: Mapping[str, Any]) -> None:
        """Raises `EventError` for an event that does not fit what was started there."""
        if "hello" in values:
            remote.greet(values["hello"])
            self._picture.state(name, "connected")
        elif "line" in values:
            self._take_line(name, remote, values)
        elif "started" in values:
            remote.command(values["started"]).folder = values["folder"]
        elif "ended" in values:
            self._take_end(name, remote, values["ended"], values["status"])
        elif "file" in values and remote.files is not None:
            remote.files.part(values)
        elif "filed" in values:
            remote.command(values["filed"]).filed = True
            remote.connection.send(got=values["filed"])
        elif "closed" in values:
            remote.closed = str(values["why"])
            if remote.files is not None and not self._all_ended(remote):
                self._picture.state(name, f"lost: {remote.closed}", told=not self._ending)

    def _take_line(self, name: str, remote: Remote, values: Mapping[str, Any]) -> None:
        role, text = values["of"], values["line"]
        command = remote.command(role)
        if remote.files is not None:
            remote.files.line(values)
        if values["stream"] == "out":
            if role == DOCTOR and text.startswith('{"facts"'):
                self._facts = text
            else:
                command.printed(text)
            return
        if text.strip():
            command.last_error = text
        if role == MASTER:
            found = PROGRESS.match(text)
            self._began = self._began or (found is not None and int(found[1]) > 0)
            self._picture.master_said(_HOW_TO_JOIN.sub("", text))
            self._picture.state(name, "training" if self._began else "running")
        elif "joined the master" in text:
            self._picture.state(name, "joined", told=True)

    def _take_end(self, name: str, remote: Remote, role: str, status: int) -> None:
        command = remote.command(role)
        command.status = status
        if role == DOCTOR:
            self._picture.state(name, "examined" if status == 0 else "cannot take part")
        elif status == 0:
            self._picture.state(name, "ended")
        else:
            told = role != MASTER and not self._ending
            self._picture.state(name, f"{role} {command.end}", told=told)

    def _all_ended(self, remote: Remote) -> bool:
        return all(command.status is not None for command in remote.commands.values())

    def _end(self, hard: bool) -> None:
        """Every command on every host ends, then every ssh."""
        self._ending = True
        for remote in self._remotes.values():
            if hard:
                remote.connection.send(hard=True)
            remote.connection.close()
        try:
            self._wait(
                lambda: all(one.closed is not None for one in self._remotes.values()),
                HARD_END_S if hard else END_S,
                interruptible=False,
            )
        finally:
            for remote in self._remotes.values():
                if remote.closed is None:
                    remote.connection.kill()


def _failure(remote: Remote) -> str:
    """Why a host that was examined cannot take part, a line each; empty if it can, or is not examined yet."""
    command = remote.commands[DOCTOR]
    if command.status:
        return "\n".join(failures(command))
    if remote.closed is not None and command.status is None:
        return f"the connection was lost while it was examined: {remote.closed}"
    return ""
