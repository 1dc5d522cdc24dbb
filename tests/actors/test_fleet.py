"""What the fleet of a run makes of the answers of its keepers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speedo.actors.fleet import fleet as module
from speedo.actors.fleet.fleet import Fleet, _Keeper
from speedo.actors.join.host_link import RESOURCE
from speedo.errors import ClusterError
from speedo.run.config.run_config import make_config

pytestmark = pytest.mark.ray
NODE = "ab" * 28


def test_a_node_whose_master_died_as_it_began_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.exceptions import ActorDiedError, RayTaskError

    dismissed: list[str] = []
    monkeypatch.setattr(Fleet, "_dismiss", lambda self, node, cause: dismissed.append(node))
    prepared: Any = SimpleNamespace(config=make_config({}))
    fleet = Fleet(prepared, lambda _: None, hosts=True)

    def hear(error: Exception) -> None:
        def answer(_: object) -> None:
            raise RayTaskError("begin", "traceback", error).as_instanceof_cause()

        monkeypatch.setattr(module.ray, "get", answer)
        keeper = _Keeper("alpha", None, "end", "asked", "begin")
        fleet._keepers["n"] = keeper
        fleet._hear("n", keeper)

    hear(ActorDiedError())
    assert (dismissed, fleet._refused) == (["n"], {})
    hear(ClusterError("no data there"))
    assert fleet._refused == {"n": "node alpha: no data there"}


def test_a_node_is_examined_once_however_often_its_keeper_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.exceptions import ActorDiedError

    asked: list[str] = []

    class Handle:
        def __getattr__(self, name: str) -> Any:
            def remote(*_: object) -> str:
                if name != "until_left":
                    asked.append(name)
                return name

            return SimpleNamespace(remote=remote)

    answers: dict[str, Exception] = {}

    def get(reference: str) -> None:
        if reference in answers:
            raise answers[reference]

    ray = SimpleNamespace(
        get=get,
        wait=lambda references, timeout: ([one for one in references if one != "until_left"], []),
        nodes=lambda: [{"NodeID": NODE, "Alive": True, "NodeManagerHostname": "alpha", "Resources": {RESOURCE: 1}}],
    )  # fmt: skip
    monkeypatch.setattr(module, "ray", ray)
    monkeypatch.setattr("speedo.actors.fleet.seats.ray", ray)
    monkeypatch.setattr(
        module, "actor_class", lambda *_, **__: SimpleNamespace(remote=lambda *_: Handle())
    )
    settings = SimpleNamespace(spec=None, engine=None)
    prepared: Any = SimpleNamespace(
        config=make_config({}), settings=settings, records=None, run_dir=Path("run")
    )
    fleet = Fleet(prepared, lambda _: None, hosts=True)
    fleet._master = Handle()
    answers["examine"] = ActorDiedError()
    fleet._look(0.0)
    assert (asked, fleet._refused) == (["examine"], {}), "its death tells nothing of the node"
    del answers["examine"]
    for _ in range(3):
        fleet._look(0.0)
    answers["until_left"] = answers["news"] = ActorDiedError()
    for _ in range(3):
        fleet._look(9.0)
    assert asked == ["examine", "examine", "begin", "news", "news", "farewell", "begin"]

    class OnAnotherNode(ActorDiedError):
        def __str__(self) -> str:
            return f"its creation failed: {module.ANOTHER_NODE}"

    answers["until_left"] = answers["news"] = answers["begin"] = OnAnotherNode()
    fleet._look(18.0)
    assert fleet._refused == {NODE: f"node {module._name_of(NODE)}: {module.ANOTHER_NODE}"}
    fleet._look(19.0)
    assert asked[-2:] == ["begin", "farewell"], "nothing more is started there"
