"""What the fleet of a run makes of the answers of its keepers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from speedo.actors.fleet import fleet as module
from speedo.actors.fleet.fleet import Fleet, _Keeper
from speedo.errors import ClusterError
from speedo.run.config.run_config import make_config

pytestmark = pytest.mark.ray


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
        keeper = _Keeper("alpha", None, "asked", "begin")
        fleet._keepers["n"] = keeper
        fleet._hear("n", keeper)

    hear(ActorDiedError())
    assert (dismissed, fleet._refused) == (["n"], {})
    hear(ClusterError("no data there"))
    assert fleet._refused == {"n": "node alpha: no data there"}
