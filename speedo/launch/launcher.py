"""One launch: connects to every host, examines all, starts the master and then the others, and ends them together."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from speedo.actors.signals import end_as, stop_signals
from speedo.errors import ClusterError, ConfigError, MachineError, SpeedoError
from speedo.launch.cluster import is_here, variables
from speedo.launch.commands import DOCTOR, LEFT, MASTER, SERVER, WORKER, LaunchPlan, in_words, roles
from speedo.launch.host_files import HostFiles
from speedo.launch.hosts import LOOK_S, Hosts, RemoteHost, greeting_problem
from speedo.launch.picture import PROGRESS, HostsPicture
from speedo.run_dir.directory import HOSTS

SILENT_S: Final = 40.0  # to start Python there
EXAMINE_S: Final = 120.0
# After the start: a host that has failed is named, though others are still examined.
NAMED_S: Final = 16.0
FAREWELL_S: Final = 20.0  # for workers to leave after their master
END_S: Final = 75.0  # for commands that were asked to end; the hosts force it before
HARD_END_S: Final = 8.0
_HOW_TO_JOIN: Final = re.compile(r"; on each node,.*")  # which is done already
_SIGNALS: Final = {"Ctrl-C": "SIGINT", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}


class Launcher:
    """Runs a plan; `said` gets the lines that the master prints to standard output."""

    def __init__(
        self, plan: LaunchPlan, picture: HostsPicture, said: Callable[[str], None]
    ) -> None:
        self._plan, self._picture, self._said = plan, picture, said
        self._hosts = Hosts(self._tell, plan.cluster.ssh_config)
        self._remotes = self._hosts.remotes
        # The master's host tells those of a solver.
        self._facts = '{"facts": {}}' if plan.command else None
        self._address = ""
        self._began = False  # whether the run has made its first iteration
        self._stopped: list[str] = []
        self._ending = False
        self._named: set[str] = set()
        self._lost: set[str] = set()
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
        # Hosts would take a stopped launcher for lost
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        hard = True
        with self._master_heard(), self._picture, stop_signals() as self._stopped:
            try:
                for name, way in ways.items():
                    self._hosts.connect(name, way, environments[name])
                self._greet()
                self._examine()
                status = self._train()
                hard = False
                return status
            finally:
                self._ending = True
                self._hosts.close(HARD_END_S if hard else END_S, hard=hard)

    @contextmanager
    def _master_heard(self) -> Iterator[None]:
        """What the master prints to standard output follows the picture."""
        yield
        for line in self._leader.commands[MASTER].out:
            self._said(line)

    @property
    def _leader(self) -> RemoteHost:
        return self._remotes[self._plan.cluster.leader]

    # ---------------------------------------------------------------- before training

    def _greet(self) -> None:
        """Every host has answered, with our version."""
        self._wait_for_all(lambda one: bool(one.hello or one.failed), SILENT_S)
        python = (self._leader.hello or {}).get("python")
        self._refuse({name: greeting_problem(one, python) for name, one in self._remotes.items()})
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
            address = self._leader.address
        if not address or (others and (address.startswith("127.") or address == "::1")):
            raise ClusterError(
                f"the address of the master's host {leader} is not known to the others (here it is "
                f"{address or 'unknown'}): give --host ADDRESS"
            )
        return address

    def _examine(self) -> None:
        """`speedo doctor` on every host; the others get the master's solver and record count from its own."""
        leader = self._plan.cluster.leader
        self._start_command(leader, DOCTOR)
        first = self._leader.commands[DOCTOR]
        self._wait(
            lambda: (
                self._facts is not None
                or first.status is not None
                or any(one.closed is not None for one in self._remotes.values())
            ),
            EXAMINE_S,
        )
        for name in self._remotes:
            if name != leader:
                self._start_command(name, DOCTOR, self._facts or '{"facts": {}}')

        self._wait_for_all(lambda one: bool(one.ready or one.failed), EXAMINE_S)
        late = f"`speedo doctor` did not end within {EXAMINE_S:.0f} s; run it there"
        self._refuse(
            {name: one.failed or late for name, one in self._remotes.items() if not one.ready}
        )

    def _refuse(self, problems: Mapping[str, str]) -> None:
        """Raises `MachineError` with each line of them, if there is one."""
        found = [f"{name}: {line}" for name, text in problems.items() for line in text.splitlines()]
        if found:
            raise MachineError(found)

    def _wait_for_all(self, done: Callable[[RemoteHost], bool], seconds: float) -> None:
        """Wait until it holds of every host. If that takes long, those that have failed are named meanwhile."""

        def over() -> bool:
            if all(map(done, self._remotes.values())):
                return True
            if time.monotonic() - self._start > NAMED_S:
                for name, remote in self._remotes.items():
                    if remote.failed and name not in self._named:
                        self._named.add(name)
                        first = remote.failed.splitlines()[0]
                        self._picture.note(f"{name}: {first}; waiting for what the other hosts say")
            return False

        self._wait(over, seconds)

    def _wait(self, until: Callable[[], bool], seconds: float) -> None:
        """Return when it holds, or after this many seconds; a signal ends the launch."""
        self._hosts.wait(until, seconds, self._stopped)
        if self._stopped:
            end_as(self._stopped[0])

    # ---------------------------------------------------------------- training

    def _train(self) -> int:
        plan, leader = self._plan, self._plan.cluster.leader
        for name, remote in self._remotes.items():
            remote.files = HostFiles(plan.local_dir, name)
        where = "" if plan.leads_here else f" on {leader}"
        self._picture.note(
            f"{len(self._remotes)} hosts are ready; run directory {plan.there_dir}{where}, logs of all hosts in "
            f"{plan.local_dir / HOSTS}"
        )
        self._start_command(leader, MASTER)
        for role in (SERVER, WORKER):
            for name in self._remotes:
                if role in roles(plan, name, self._address):
                    self._start_command(name, role)
        try:
            status = self._follow()
        except SpeedoError:
            self._end_commands(0.0)
            raise
        self._end_commands(FAREWELL_S if status == 0 else 3.0)
        return status

    def _follow(self) -> int:
        """The status of the master once it has ended. Raises `SpeedoError` if it cannot begin, or is lost."""
        plan, leader, remote = self._plan, self._plan.cluster.leader, self._leader
        master = remote.commands[MASTER]
        told = False
        while not self._hosts.wait(lambda: master.status is not None, LOOK_S):
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
            if not self._began and not told:  # the master would wait for them in vain
                self._refuse({name: one.failure for name, one in self._remotes.items()})
        assert master.status is not None
        return master.status if master.status >= 0 else 128 - master.status

    def _end_commands(self, patience_s: float) -> None:
        missing = self._hosts.end_commands(self._remotes.values(), patience_s, END_S)
        for name, why in missing.items():
            self._picture.note(f"warning: logs of {name}: {why}")

    def _start_command(self, name: str, role: str, text: str = "") -> None:
        collect = role == MASTER and not self._plan.leads_here
        self._hosts.start(
            self._remotes[name],
            roles(self._plan, name, self._address)[role],
            text,
            [f"{self._plan.there_dir}/{part}" for part in LEFT] if collect else (),
        )
        self._picture.state(name, f"{role} is starting" if role != DOCTOR else "being examined")

    # ---------------------------------------------------------------- events

    def _tell(self, remote: RemoteHost, values: Mapping[str, Any]) -> None:
        """Show what a host has sent, from the thread that hears it."""
        name = remote.connection.key
        if "hello" in values:
            self._picture.state(name, "connected")
        elif "line" in values:
            self._tell_line(name, values["of"], values["stream"], values["line"])
        elif "ended" in values:
            self._tell_end(name, remote, values["ended"])
        elif "closed" in values and not remote.ended:
            told = not self._ending and name not in self._lost
            self._lost.add(name)
            if remote.files is not None:
                self._picture.state(name, f"lost: {remote.closed}", told=told)

    def _tell_line(self, name: str, role: str, stream: str, text: str) -> None:
        if stream == "out":
            if role == DOCTOR and text.startswith('{"facts"'):
                self._facts = text
        elif role == MASTER:
            found = PROGRESS.match(text)
            self._began = self._began or (found is not None and int(found[1]) > 0)
            self._picture.master_said(_HOW_TO_JOIN.sub("", text))
            self._picture.state(name, "training" if self._began else "running")
        elif "joined the master" in text:
            self._picture.state(name, "joined", told=True)

    def _tell_end(self, name: str, remote: RemoteHost, role: str) -> None:
        command = remote.commands[role]
        if role == DOCTOR:
            self._picture.state(name, "cannot take part" if command.status else "examined")
        elif command.status == 0:
            self._picture.state(name, "ended")
        else:
            told = role != MASTER and not self._ending
            self._picture.state(name, f"{role} {command.end}", told=told)
