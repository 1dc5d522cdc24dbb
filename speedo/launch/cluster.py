"""A cluster to launch: its hosts, how ssh reaches them, and what runs on each. Checked whole, by pydantic."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from speedo.errors import ConfigError
from speedo.run.config.option_checks import check_device
from speedo.run.config.run_config import LARGEST_WORKERS, THREADS
from speedo.system.bounds import said, whole_number
from speedo.system.cores import Bind, cores_in

HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,100}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?", re.DOTALL)
_HERE: Final = ("localhost", "127.0.0.1")


def _is(pattern: re.Pattern[str], remedy: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(remedy)
        return value

    return BeforeValidator(check)


def _number(least: int, most: int) -> BeforeValidator:
    def check(value: Any) -> Any:
        number = whole_number(value) if isinstance(value, str) else value
        if type(number) is not int or not least <= number <= most:
            raise ValueError(f"use a whole number from {least} to {most}")
        return number

    return BeforeValidator(check)


def _text(value: Any) -> Any:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("use the name of a file or folder")
    return value


def _file_here(value: Any) -> Any:
    path = Path(_text(value)).expanduser()
    if not path.is_file():
        raise ValueError("there is no such file on this machine; correct the name")
    return str(path.absolute())


def _threads(value: Any) -> Any:
    if type(value) not in (int, str) or THREADS("threads", str(value)):
        raise ValueError("use a whole number from 1 on, or auto")
    return str(value)


def _device(value: Any) -> Any:
    if type(value) is not str or check_device("device", value):
        raise ValueError("use auto, cpu, cuda, or one device as in cuda:0")
    return value


def _bind(value: Any) -> Any:
    if value not in ("core", "socket", "none"):
        raise ValueError("use core, socket or none")
    return value


def _cores(value: Any) -> Any:
    for text in value if isinstance(value, list | tuple) else (value,):
        try:
            if not isinstance(text, str) or not cores_in(text):
                raise ValueError
        except ValueError:
            raise ValueError(
                "use a list with SOCKET:CORES for each worker, as in ['0:0-1', '0:2-3']"
            ) from None
    return value


def _servers(value: Any) -> Any:
    number = whole_number(value) if isinstance(value, str) else value
    if value == "auto" or (type(number) is int and 0 <= number <= LARGEST_WORKERS):
        return str(value)
    if not isinstance(value, list):
        raise ValueError("use a list of hosts, a whole number, or auto")
    return [_entry(one) for one in value]


def _entry(value: Any) -> Any:
    """The name of a host alone, or `HOST:WORKERS`, stands for the mapping."""
    if not isinstance(value, str):
        return value
    name, colon, count = value.partition(":")
    return {"host": name, "workers": count} if colon else {"host": name}


Name = Annotated[str, _is(HOST, "use a host name, an IPv4 address or a Host of ssh_config")]
Place = Annotated[str, BeforeValidator(_text)]
FileHere = Annotated[str, BeforeValidator(_file_here)]
Variable = Annotated[str, _is(_VARIABLE, "use the name of a variable, or NAME=VALUE")]


class HostAccess(BaseModel):
    """How a host is reached, and what SpeeDO has there. What is None is ssh's or the login's default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    username: Annotated[str, _is(_USER, "use a login name")] | None = None
    ssh_key: FileHere | None = None
    ssh_port: Annotated[int, _number(1, 65535)] | None = None
    virtualenv: Place | None = None
    directory: Place | None = None
    env: tuple[Variable, ...] = ()


class Host(HostAccess):
    """A host, with its own access where that is not the cluster's."""

    host: Name


class HostEntry(Host):
    """A host with workers; threads, bind, cores, device and data root are as for `speedo worker`."""

    workers: Annotated[int, _number(1, LARGEST_WORKERS)] = 1
    threads: Annotated[str, BeforeValidator(_threads)] | None = None
    bind: Annotated[Bind, BeforeValidator(_bind)] | None = None
    cores: Annotated[tuple[str, ...], BeforeValidator(_cores)] = ()
    device: Annotated[str, BeforeValidator(_device)] | None = None
    data_root: Place | None = None

    @model_validator(mode="after")
    def _for_each_worker(self) -> Self:
        if self.cores and len(self.cores) != self.workers:
            raise ValueError(
                f"cores: {len(self.cores)} are listed for {self.workers} workers; list one for each worker"
            )
        return self


class ClusterFile(HostAccess):
    """The whole file. `servers` are hosts, or a number or `auto` as for --servers. Without a master, the first host."""

    ssh_config: FileHere | None = None
    master: Annotated[Host, BeforeValidator(_entry)] | None = None
    servers: Annotated[str | tuple[Host, ...], BeforeValidator(_servers)] = ()
    workers: Annotated[
        tuple[Annotated[HostEntry, BeforeValidator(_entry)], ...], Field(min_length=1)
    ]

    @property
    def leader(self) -> str:
        """The host of the master."""
        return self.master.host if self.master is not None else self.workers[0].host

    @property
    def server_hosts(self) -> tuple[str, ...]:
        """The hosts that only serve: a host with workers serves beside them."""
        trains = {one.host for one in self.workers}
        named = () if isinstance(self.servers, str) else self.servers
        return tuple(one.host for one in named if one.host not in trains)

    @property
    def server_count(self) -> str | None:
        """The value of --servers; None where the file has no servers."""
        return (
            self.servers if isinstance(self.servers, str) else str(len(self.servers) or "") or None
        )

    @property
    def count(self) -> int:
        """Workers of all hosts."""
        return sum(one.workers for one in self.workers)

    def trains(self, name: str) -> HostEntry | None:
        """The workers of this host."""
        return next((one for one in self.workers if one.host == name), None)

    def access(self) -> dict[str, HostAccess]:
        """Every host once, with what the cluster says for all of them filled in."""
        named = [self.master] if self.master is not None else []
        named += [] if isinstance(self.servers, str) else self.servers
        ways: dict[str, HostAccess] = {}
        common = {key: value for key in HostAccess.model_fields if (value := getattr(self, key))}
        for one in (*named, *self.workers):
            own = {key: value for key in HostAccess.model_fields if (value := getattr(one, key))}
            known = {} if one.host not in ways else ways[one.host].model_dump()
            merged = {**common, **{key: value for key, value in known.items() if value}, **own}
            merged["env"] = (*self.env, *one.env)
            ways[one.host] = HostAccess.model_construct(**merged)
        return {self.leader: ways[self.leader], **ways}

    def problems(self) -> list[str]:
        """What no single field shows: hosts that are there twice."""
        found = []
        lists = {"workers": [one.host for one in self.workers]}
        if not isinstance(self.servers, str):
            lists["servers"] = [one.host for one in self.servers]
        for key, names in lists.items():
            for name in sorted({*names}):
                if names.count(name) > 1:
                    found.append(f"{key}: host {name} is there twice; keep one entry")
        if self.count > LARGEST_WORKERS:
            found.append(
                f"the hosts have {self.count} workers; a run has at most {LARGEST_WORKERS}"
            )
        return found


def is_here(name: str) -> bool:
    """Whether a host is this machine by name, so that no ssh is needed."""
    own = socket.gethostname()
    return name in (*_HERE, own, own.split(".")[0])


def variables(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """`NAME` with its value here, `NAME=VALUE` as it is. Raises `ConfigError` for names that are not set."""
    found: dict[str, str] = {}
    missing = []
    for one in names:
        name, equals, value = one.partition("=")
        if not equals and name not in environment:
            missing.append(name)
        found[name] = value if equals else environment.get(name, "")
    if missing:
        raise ConfigError(
            f"env names {said(name)}, which is not set here: export it, or give {name}=VALUE"
            for name in dict.fromkeys(missing)
        )
    return found
