"""Reads a cluster in each of its forms: our YAML, Poseidon's JSON, a rank file, lists of hosts.

    node1 slots=4      mpirun --hostfile        node1:4      horovodrun, and -H node1:4,node2:4

Poseidon is Zhang et al. 2017; its `psd_run -c config.json` reads the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from caffenets.files import read_text
from speedo.errors import ConfigError
from speedo.launch.cluster import ClusterFile, Host, HostEntry
from speedo.run.config.formats import PlainLoader, load_text
from speedo.run.config.topology import Topology, from_rank_file, from_yaml
from speedo.system.bounds import said
from speedo.system.cores import slots_of

MOST_BYTES: Final = 1_000_000
POSEIDON: Final = {
    "master_node": "master",
    "worker_nodes": "workers",
    "server_nodes": "servers",
    "pem_file": "ssh_key",
    "virtualenv": "virtualenv",
    "username": "username",
}
_RANK: Final = re.compile(r"rank\s+[0-9]")
_LINE: Final = re.compile(
    r"([^\s:=]+)(?::([0-9]{1,9})|\s+slots\s*=\s*([0-9]{1,9}))?(?:\s+max[-_]slots\s*=\s*[0-9]+)?"
)
_MODELS: Final = {"workers": HostEntry, "servers": Host, "master": Host}
Where = Callable[[Sequence[Any]], str]


def read_cluster(file: Path, given: Mapping[str, Any]) -> ClusterFile:
    """A cluster file in any form; `given` are options that override it. Raises `ConfigError` with every bad field."""
    text = _content(file, "the cluster file")
    first = next((line for line in map(_bare, text.splitlines()) if line), "")
    try:
        if first.startswith("{"):
            values, where = _poseidon(text), _line_of_key(file, text)
        elif _RANK.match(first):
            values, where = _from_topology(from_rank_file(text)), _nowhere(file)
        elif first.startswith("hosts:"):
            values, where = _from_topology(from_yaml(text)), _nowhere(file)
        else:
            values, where = _from_yaml(text), _line_of_node(file, text)
    except ConfigError as error:
        raise ConfigError(f"{file}: {problem}" for problem in error.problems) from None
    return _made(values, given, where)


def read_host_file(file: Path, given: Mapping[str, Any]) -> ClusterFile:
    """One host a line, as mpirun and horovodrun have them; a host that comes again has more workers."""
    hosts: dict[str, int] = {}
    problems = []
    for number, line in enumerate(_content(file, "the host file").splitlines(), 1):
        if bare := _bare(line):
            problems += [f"{file}, line {number}: {one}" for one in _add(hosts, bare)]
    return _listed(hosts, problems, given, str(file))


def cluster_of(hosts: str, given: Mapping[str, Any]) -> ClusterFile:
    """The hosts of -H: `a:2,b:4`."""
    counted: dict[str, int] = {}
    problems = [f"-H: {one}" for part in hosts.split(",") for one in _add(counted, part.strip())]
    return _listed(counted, problems, given, "-H")


def _listed(
    hosts: dict[str, int], problems: list[str], given: Mapping[str, Any], source: str
) -> ClusterFile:
    if problems:
        raise ConfigError(problems)
    if not hosts:
        raise ConfigError(f"{source} names no host; for example node1:4")
    workers = [{"host": name, "workers": count} for name, count in hosts.items()]
    return _made({"workers": workers}, given, lambda place: f"{source}: {_path(place)}")


def _add(hosts: dict[str, int], text: str) -> list[str]:
    found = _LINE.fullmatch(text)
    count = int(found[2] or found[3] or 1) if found is not None else 0
    if found is None or count == 0:
        return [f"{said(text)} is no host: use HOST, HOST:WORKERS or HOST slots=WORKERS"]
    hosts[found[1]] = hosts.get(found[1], 0) + count
    return []


def _made(values: Mapping[str, Any], given: Mapping[str, Any], where: Where) -> ClusterFile:
    """The checked cluster; what `given` has replaces the file's."""
    given = {key: value for key, value in given.items() if value not in (None, ())}
    merged = {**values, **given}
    try:
        cluster = ClusterFile.model_validate(merged)
    except ValidationError as error:  # a list whose members are all wrong is not empty
        found = [one for one in error.errors() if one["type"] != "too_short"]
        raise ConfigError(
            dict.fromkeys(_told(one, where, given) for one in found or error.errors())
        ) from None
    if problems := cluster.problems():
        raise ConfigError(f"{where(())}{': ' if where(()) else ''}{one}" for one in problems)
    return cluster


def _told(error: Any, where: Where, given: Mapping[str, Any]) -> str:
    """One bad field: the file, its line and key, the value, the remedy."""
    place = [part for part in error["loc"] if part not in ("str", "tuple[Host, ...]")]
    at = f"--{place[0].replace('_', '-')}" if place and place[0] in given else where(place)
    if error["type"] == "extra_forbidden":
        keys = ", ".join(
            _MODELS.get(str(place[0]), ClusterFile).model_fields
            if place[1:]
            else ClusterFile.model_fields
        )
        return f"{at} is no key of a cluster file; the keys here are {keys}"
    if error["type"] == "missing":
        return f"{at} is missing; {'list the hosts with workers' if place == ['workers'] else 'give it'}"
    if error["type"] == "too_short":
        return f"{at} names no host; list the hosts with workers, as in - host: node1"
    message = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    if error["type"] in ("tuple_type", "list_type"):
        message = "use a list"
    elif error["type"] in ("model_type", "model_attributes_type"):
        message = "use the name of a host, or a mapping with the key host"
    return f"{at} is {said(error['input'])}: {message}"


# ---------------------------------------------------------------- forms


def _from_yaml(text: str) -> dict[str, Any]:
    loaded = load_text(text)
    if not isinstance(loaded, dict):
        raise ConfigError(
            "it is no cluster file: write master, workers and so on, as in docs/clusters.md; a list of hosts is read "
            "with --hostfile"
        )
    return {str(key): value for key, value in loaded.items()}


def _poseidon(text: str) -> dict[str, Any]:
    """Poseidon's keys under our names. A node that is there several times has as many workers."""
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is not JSON: {error}") from None
    if not set(loaded) & set(POSEIDON):
        return dict(loaded)  # our own keys, in JSON
    if unknown := [key for key in loaded if key not in POSEIDON]:
        raise ConfigError(
            f"{said(key)} is no key of Poseidon's that is read here; remove it, or write a cluster file in YAML"
            for key in unknown
        )
    values = {POSEIDON[key]: value for key, value in loaded.items()}
    nodes = values.get("workers")
    if isinstance(nodes, list) and all(isinstance(one, str) for one in nodes):
        counts = {name: nodes.count(name) for name in nodes}
        values["workers"] = [{"host": name, "workers": count} for name, count in counts.items()]
    return values


def _from_topology(topology: Topology) -> dict[str, Any]:
    return {
        "workers": [
            {
                "host": one.name,
                "workers": len(one.cores),
                "threads": str(one.threads),
                "bind": one.bind,
                "cores": [slots_of(cores) for cores in one.cores if cores],
            }
            for one in topology
        ]
    }


# ---------------------------------------------------------------- where a field is


def _path(place: Sequence[Any]) -> str:
    """`workers[2].threads`, counted from 1 as people do."""
    words = ""
    for part in place:
        words += f"[{part + 1}]" if isinstance(part, int) else f".{part}"
    return words.removeprefix(".")


def _nowhere(file: Path) -> Where:
    return lambda place: f"{file}: {_path(place)}" if place else str(file)


def _line_of_node(file: Path, text: str) -> Where:
    """The line of a field in YAML: that of its key, or of the nearest thing above it that is there."""
    root = yaml.compose(text, PlainLoader)

    def where(place: Sequence[Any]) -> str:
        node: Any = root
        line = None
        for part in place:
            if isinstance(node, yaml.MappingNode):
                pair = next((one for one in node.value if one[0].value == part), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                node = node.value[part]
                line = node.start_mark.line
            else:
                break
        if not place:
            return str(file)
        return f"{file}{f', line {line + 1}' if line is not None else ''}: {_path(place)}"

    return where


def _line_of_key(file: Path, text: str) -> Where:
    """The same in JSON: the line where the key first stands."""
    names = {ours: theirs for theirs, ours in POSEIDON.items() if f'"{theirs}"' in text}

    def where(place: Sequence[Any]) -> str:
        if not place:
            return str(file)
        renamed = [names.get(part, part) if isinstance(part, str) else part for part in place]
        at = text.find(f'"{renamed[0]}"')
        line = f", line {text.count(chr(10), 0, at) + 1}" if at >= 0 else ""
        return f"{file}{line}: {_path(renamed)}"

    return where


def _bare(line: str) -> str:
    return line.partition("#")[0].strip()


def _content(file: Path, what: str) -> str:
    try:
        return read_text(file, MOST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise ConfigError(f"{what} {file} cannot be read ({why}); correct its name") from None
