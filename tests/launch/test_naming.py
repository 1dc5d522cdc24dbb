"""Every host that fails its examination is named, also one that fails long after the first."""

from __future__ import annotations

import json
import threading
import time
from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console

from speedo.errors import MachineError
from speedo.launch import launcher
from speedo.launch.cluster import HostAccess
from speedo.launch.commands import LaunchPlan
from speedo.launch.connection import Connection
from speedo.launch.hosts import RemoteHost
from speedo.launch.launcher import Launcher
from speedo.launch.picture import HostsPicture
from speedo.launch.read_cluster import cluster_of
from speedo.version import VERSION


class Hosts:
    """Hosts whose doctors say these things after so many seconds; None is one that is well."""

    def __init__(self, made: Launcher, says: dict[str, tuple[float, str | None]]) -> None:
        self._hosts, self._says = made._hosts, says
        made._remotes.update(
            {name: RemoteHost(cast(Connection, _Line(self, name))) for name in says}
        )
        for name in says:
            made._picture.host(name, "1 worker")
            hello = {"speedo": VERSION, "python": "3.11", "address": name}
            self._tell(name, {"hello": hello})

    def _tell(self, name: str, values: dict[str, Any]) -> None:
        self._hosts.take(name, values)

    def examine(self, name: str) -> None:
        seconds, problem = self._says[name]
        time.sleep(seconds)
        check = {"name": "pycaffe", "level": "fail", "text": problem, "remedy": "install it"}
        checks = json.dumps({"checks": [check] if problem else []})
        facts = '{"facts": {}}'
        for text in (facts, checks):
            self._tell(name, {"of": "doctor", "stream": "out", "line": text})
        self._tell(name, {"ended": "doctor", "status": 1 if problem else 0})


class _Line:
    def __init__(self, hosts: Hosts, name: str) -> None:
        self._hosts, self.name, self.key, self.access = hosts, name, name, HostAccess()

    def send(self, **values: Any) -> None:
        if values.get("start") == "doctor":
            threading.Thread(target=self._hosts.examine, args=(self.name,), daemon=True).start()


@pytest.mark.slow
def test_a_host_that_fails_after_the_others_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "NAMED_S", 0.5)
    cluster = cluster_of("10.0.0.1,10.0.0.2,10.0.0.3", {})
    plan = LaunchPlan(cluster, None, (), None, None, "run", None, None)
    shown = StringIO()
    made = Launcher(plan, HostsPicture(Console(file=shown, width=500)), lambda line: None)
    Hosts(
        made,
        {
            "10.0.0.1": (0.0, None),
            "10.0.0.2": (0.1, "pycaffe is not there"),
            "10.0.0.3": (3.0, "pycaffe is of another version"),
        },
    )
    made._greet()
    with pytest.raises(MachineError) as refused:
        made._examine()
    assert list(refused.value.problems) == [
        "10.0.0.2: pycaffe: pycaffe is not there; install it",
        "10.0.0.3: pycaffe: pycaffe is of another version; install it",
    ]
    # Who waits for the end of that sees at once which host to mend.
    told, *_ = shown.getvalue().splitlines()
    assert told.startswith("10.0.0.2: pycaffe: pycaffe is not there; install it; waiting for")
