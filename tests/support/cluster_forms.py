"""The hosts of a site as `speedo launch` reads them: our YAML, -H, Poseidon's JSON, a rank file."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from speedo.system.cores import Core, slots_of, this_machine
from tests.support.forked.commands import virtualenv
from tests.support.ssh_hosts import Site


def as_yaml(hosts: Site, folder: Path) -> list[str]:
    first, second, third, fourth = hosts.addresses
    values = {
        "master": first,
        "virtualenv": str(virtualenv()),
        "username": "root",
        "env": ["OF_THE_USER=17"],
        "servers": [fourth],
        "workers": [
            {"host": first, "threads": 1, "bind": "none"},
            {"host": second, "workers": 1, "env": ["OF_THE_HOST=18"]},
            third,
        ],
    }
    (folder / "cluster.yaml").write_text(yaml.safe_dump(values))
    return ["cluster.yaml"]


def as_words(hosts: Site, folder: Path, count: int | None = None) -> list[str]:
    """By the names that only the user's ~/.ssh/config knows; all hosts, or so many."""
    names = [one.folder.name for one in hosts.hosts[:count]]
    return ["-H", ",".join(f"{one}:1" for one in names), "--virtualenv", str(virtualenv())]


def as_poseidons(hosts: Site, folder: Path) -> list[str]:
    first, *others = hosts.addresses
    values = {
        "master_node": first,
        "worker_nodes": others,
        "virtualenv": str(virtualenv()),
        "username": "root",
        "pem_file": str(hosts.home / ".ssh" / "id_ed25519"),
    }
    (folder / "config.json").write_text(json.dumps(values, indent=2))
    return ["config.json"]


def core_of(rank: int) -> Core:
    """The core of this machine that the rank file has for a rank: the last one for the first."""
    cores = this_machine().cores
    return cores[-1 - rank % len(cores)]


def as_rank_file(hosts: Site, folder: Path, count: int | None = None) -> list[str]:
    """Four ranks on all hosts, or on so many."""
    addresses = hosts.addresses[:count]
    ranks = [
        f"rank {rank}={addresses[rank * len(addresses) // 4]} slot={slots_of([core_of(rank)])}"
        for rank in range(4)
    ]
    (folder / "hosts.rankfile").write_text("\n".join([*ranks, ""]))
    (folder / "ssh_config").write_text("Host *\n    IdentityFile ~/.ssh/id_ed25519\n")
    return ["hosts.rankfile", "--ssh-config", "ssh_config", "--virtualenv", str(virtualenv())]
