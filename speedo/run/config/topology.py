"""Which workers run on which hosts, with how many threads, bound to which cores: planned, written and read back.

Two written forms say the same: ours, in YAML, and a rank file of Open MPI (mpirun(1), "Rankfiles"), one line for each
worker, as in `rank 0=node1 slot=0:0-1`. A rank file has no word for threads and for processes that are not bound. So
ours has a comment for each host, which Open MPI skips:

    # host node1: sockets 8+8, threads 2, bind core

In a rank file without these comments a worker has as many threads as cores, and a host the cores that are named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from caffenets.files import read_text
from speedo.errors import ConfigError
from speedo.run.config.findings import sentence
from speedo.run.config.formats import load_text
from speedo.run.config.run_config import LARGEST_WORKERS, THREADS
from speedo.system.bounds import said, whole_number
from speedo.system.cores import (
    AUTO,
    USUAL,
    Bind,
    Core,
    CoreOptions,
    Machine,
    cores_in,
    deal,
    slots_of,
    threads_of,
)

MOST_BYTES: Final = 1_000_000
MOST_CORES: Final = 4096  # of a host; more are a slip
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_CORES: Final = re.compile(r"(?:([0-9]{1,4})x)?([0-9]{1,4})")
_RANK: Final = re.compile(r"rank\s+([0-9]{1,9})\s*=\s*(\S+)\s+slots?\s*=\s*(\S+)")
_FIRST_RANK: Final = re.compile(r"rank\s+[0-9]")
_COMMENT: Final = re.compile(
    r"#\s*host (\S+): sockets ([0-9+]{1,500}), threads ([0-9]{1,4}), bind (core|socket|none)"
)
_SLOTS: Final = re.compile(r"(\S+)\s+slots=([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class HostTopology:
    """The workers of one host. `sockets` are the numbers of cores of its sockets, `cores` those of each worker.

    A worker that is not bound has no cores.
    """

    name: str
    sockets: tuple[int, ...]
    threads: int
    bind: Bind
    cores: tuple[tuple[Core, ...], ...]

    @property
    def all_cores(self) -> tuple[Core, ...]:
        """Every core of the host."""
        return _machine(self.sockets).cores

    def problems(self) -> list[str]:
        """What cannot be, a sentence each."""
        found = THREADS(f"host {self.name}: threads", str(self.threads))
        if not 1 <= len(self.cores) <= LARGEST_WORKERS:
            found.append(
                f"host {self.name} has {len(self.cores)} workers: use 1 to {LARGEST_WORKERS}"
            )
        if not self.sockets or not all(0 < size <= MOST_CORES for size in self.sockets):
            found.append(f"host {self.name}: each of its sockets has 1 to {MOST_CORES} cores")
            return found
        there = set(self.all_cores)
        for number, cores in enumerate(self.cores):
            if missing := [core for core in cores if core not in there]:
                found.append(
                    f"host {self.name}: worker {number} is bound to {slots_of(missing)}, but its sockets have "
                    f"{_plus(self.sockets)} cores"
                )
            if bool(cores) != (self.bind != "none"):
                found.append(
                    f"host {self.name}: worker {number} has {'' if cores else 'no '}cores, but bind is {self.bind}"
                )
        return found


Topology = tuple[HostTopology, ...]


def checked(hosts: Iterable[HostTopology]) -> Topology:
    """The same; raises `ConfigError` with everything in it that cannot be."""
    topology = tuple(hosts)
    found = [problem for host in topology for problem in host.problems()]
    names = [host.name for host in topology]
    found += [f"host {name} is there twice" for name in sorted({*names}) if names.count(name) > 1]
    if not topology:
        found.append("there is no host: name one, as in node1:4:16")
    if found:
        raise ConfigError(found)
    return topology


# ---------------------------------------------------------------- planned


def plan(
    hosts: Iterable[str], options: CoreOptions, local: Callable[[str], Machine | None]
) -> Topology:
    """The topology of hosts that are given as HOST, HOST:WORKERS or HOST:WORKERS:CORES, CORES being 16 or 2x8.

    `local` answers the cores of a host that is this one, and None for any other. A host whose cores are not known is
    taken to have as many as its workers have threads. Raises `ConfigError`.
    """
    planned: list[HostTopology] = []
    found = THREADS("threads", options.threads)
    for text in () if found else hosts:
        try:
            planned.append(_planned(text, options, local))
        except ConfigError as error:
            found += error.problems
    if found:
        raise ConfigError(found)
    return checked(planned)


def _planned(
    text: str, options: CoreOptions, local: Callable[[str], Machine | None]
) -> HostTopology:
    name, *rest = text.split(":")
    workers = whole_number(rest[0]) if rest else 1
    sizes = _sizes(rest[1]) if len(rest) > 1 else None
    if (
        not _NAME.fullmatch(name)
        or len(rest) > 2
        or workers is None
        or not 1 <= workers <= LARGEST_WORKERS
        or (len(rest) > 1 and sizes is None)
    ):
        raise ConfigError(
            f"{said(text)} is not HOST, HOST:WORKERS or HOST:WORKERS:CORES; for example node1:4:16, or node1:4:2x8 "
            "for two sockets with 8 cores each"
        )
    machine = local(name) if sizes is None else _machine(sizes)
    if machine is None and options.threads == AUTO:
        raise ConfigError(
            f"threads is {AUTO}, but the cores of host {name} are not known here: give them, as in {name}:{workers}:16"
        )
    if machine is None:
        machine = _machine((min(workers * int(options.threads), MOST_CORES),))
    threads = threads_of(options, machine, workers)
    cores = deal(machine, workers, threads, options.bind)
    sockets = tuple(len(one) for one in machine.sockets)
    return HostTopology(name, sockets, threads, options.bind, tuple(cores))


def _sizes(text: str) -> tuple[int, ...] | None:
    found = _CORES.fullmatch(text)
    if found is None or not 0 < int(found[2]) <= MOST_CORES or not 0 < int(found[1] or 1) <= 64:
        return None
    return (int(found[2]),) * int(found[1] or 1)


def _machine(sizes: Sequence[int]) -> Machine:
    return Machine(tuple(tuple((core,) for core in range(size)) for size in sizes))


# ---------------------------------------------------------------- written


def to_yaml(topology: Topology) -> str:
    """Our form: for each host what `speedo worker` is to be given there, and the cores of each worker."""
    hosts = [
        {
            "host": host.name,
            "workers": len(host.cores),
            "threads": host.threads,
            "bind": host.bind,
            "sockets": list(host.sockets),
            **({} if host.bind == "none" else {"cores": [slots_of(cores) for cores in host.cores]}),
        }
        for host in topology
    ]
    return yaml.safe_dump({"hosts": hosts}, sort_keys=False, default_flow_style=None, width=110)


def to_rank_file(topology: Topology) -> str:
    """The rank file: workers are numbered host by host; one that is not bound has all cores of its host."""
    lines = [
        "# Rank file of Open MPI, written by speedo topology; the comments are for reading it back."
    ]
    rank = 0
    for host in topology:
        lines.append(
            f"# host {host.name}: sockets {_plus(host.sockets)}, threads {host.threads}, bind {host.bind}"
        )
        for cores in host.cores:
            lines.append(f"rank {rank}={host.name} slot={slots_of(cores or host.all_cores)}")
            rank += 1
    return "\n".join([*lines, ""])


# ---------------------------------------------------------------- read


def read_topology(
    file: Path, options: CoreOptions | None, local: Callable[[str], Machine | None]
) -> Topology:
    """A file in either form, or a list of hosts to plan for: one a line as in `plan`, or as `HOST slots=N`.

    `options` are for a list of hosts alone; None are their defaults. Raises `ConfigError`.
    """
    try:
        text = read_text(file, MOST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise ConfigError(f"{file} cannot be read ({why}); correct --file") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    first = next(filter(None, lines), "")
    try:
        ours = first.startswith("hosts:")
        if ours or _FIRST_RANK.match(first):
            if options is not None:
                raise ConfigError("it says threads and bindings itself: leave --threads out")
            return from_yaml(text) if ours else from_rank_file(text)
        named = (_SLOTS.sub(r"\1:\2", line) for line in lines if line)
        return plan(named, options or USUAL, local)
    except ConfigError as error:
        raise ConfigError(f"{file}: {problem}" for problem in error.problems) from None


def from_yaml(text: str) -> Topology:
    """What `to_yaml` writes, read back; raises `ConfigError`."""
    loaded = load_text(text)
    hosts = loaded.get("hosts") if isinstance(loaded, dict) and len(loaded) == 1 else None
    if not isinstance(hosts, list):
        raise ConfigError("it holds no list of hosts; write one with `speedo topology`")
    return checked(_host_from(one) for one in hosts)


class _Host(BaseModel):
    """A host as it is written."""

    model_config = ConfigDict(strict=True, extra="forbid")

    host: Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]
    workers: Annotated[int, Field(ge=1, le=LARGEST_WORKERS)]
    threads: int
    bind: Bind
    sockets: list[int]
    cores: list[Any] | None = None


def _host_from(one: Any) -> HostTopology:
    name = one.get("host") if isinstance(one, Mapping) else None
    try:
        host = _Host.model_validate(one)
    except ValidationError as error:
        raise ConfigError(
            f"host {said(name)}: {sentence(dict(detail), {}, _Host.model_fields, ())}"
            for detail in error.errors()
        ) from None
    listed = [""] * host.workers if host.cores is None else host.cores
    if len(listed) != host.workers:
        raise ConfigError(f"host {host.host}: cores is no list for {host.workers} workers")
    cores = tuple(_cores_in(host.host, part) for part in listed)
    return HostTopology(host.host, tuple(host.sockets), host.threads, host.bind, cores)


def from_rank_file(text: str) -> Topology:
    """A rank file, ours or another's; raises `ConfigError`."""
    told: dict[str, tuple[tuple[int, ...], int, Bind]] = {}
    ranks: dict[int, tuple[str, tuple[Core, ...]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        comment = _COMMENT.fullmatch(line.strip())
        if comment is not None:
            sizes = tuple(int(part[:5]) for part in comment[2].split("+") if part)
            bind = next(one for one in get_args(Bind) if one == comment[4])
            told[comment[1]] = (sizes, int(comment[3]), bind)
        content = line.partition("#")[0].partition("//")[0].strip()
        if not content:
            continue
        found = _RANK.fullmatch(content)
        if found is None or not _NAME.fullmatch(found[2]):
            raise ConfigError(
                f"line {number} is no line of a rank file: use rank 0=HOST slot=0:0-1"
            )
        if int(found[1]) in ranks:
            raise ConfigError(f"line {number}: rank {int(found[1])} is there twice")
        ranks[int(found[1])] = (found[2], _cores_in(found[2], found[3]))
    if sorted(ranks) != list(range(len(ranks))):
        raise ConfigError(f"ranks are not 0 to {len(ranks) - 1}: each worker has one")
    by_host: dict[str, list[tuple[Core, ...]]] = {}
    for _, (name, cores) in sorted(ranks.items()):
        by_host.setdefault(name, []).append(cores)
    return checked(_host_of(name, cores, told.get(name)) for name, cores in by_host.items())


def _host_of(
    name: str, cores: list[tuple[Core, ...]], told: tuple[tuple[int, ...], int, Bind] | None
) -> HostTopology:
    if told is not None:
        sockets, threads, bind = told
        unbound: list[tuple[Core, ...]] = [()] * len(cores)
        return HostTopology(
            name, sockets, threads, bind, tuple(unbound if bind == "none" else cores)
        )
    named = [core for one in cores for core in one]
    count = max(socket for socket, _ in named) + 1
    sizes = [
        max((core + 1 for on, core in named if on == socket), default=1) for socket in range(count)
    ]
    return HostTopology(name, tuple(sizes), max(map(len, cores)), "core", tuple(cores))


def _cores_in(host: str, text: Any) -> tuple[Core, ...]:
    try:
        return cores_in(str(text))
    except ValueError:
        raise ConfigError(
            f"host {host}: the cores {said(text)} are not SOCKET:CORES, as in 0:0-3 or 0:0-3,1:0-3"
        ) from None


def _plus(sizes: Iterable[int]) -> str:
    return "+".join(map(str, sizes))
