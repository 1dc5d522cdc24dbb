"""What a worker of a script keeps in checkpoints: `run.keep`, and the optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import speedo
from speedo.errors import ConfigError, EngineError, PayloadError
from speedo.exchange.packed import pack
from speedo.exchange.transfer import take_history
from speedo.master.slots import Assignment
from speedo.messages import SaveState, StateSaved
from speedo.run.script.kept_state import ScriptState
from speedo.storage.memory_store import MemoryStore


class Thing:
    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_what_is_kept_comes_back_when_it_is_named_before_or_after() -> None:
    kept = ScriptState(None)
    kept.keep("a", Thing(n=1, x=np.arange(3)))
    kept.keep("b", Thing(n=2))
    kept.epoch = 3
    data = kept.save()
    again, a, b = ScriptState(None), Thing(), Thing(n=0)
    again.keep("a", a)
    assert a.state == {}
    again.restore(data)
    assert again.epoch == 3
    assert (a.state["n"], a.state["x"].tolist()) == (1, [0, 1, 2])
    later = ScriptState(None)
    later.restore(again.save())  # what nobody has named yet is not lost
    later.keep("b", b)
    assert b.state == {"n": 2}


@pytest.mark.parametrize(
    ("name", "thing", "said"),
    [
        ("rate", 3, r"run\.keep\('rate', \.\.\.\) was given a int: it needs state_dict\(\) and"),
        ("", Thing(), "an empty name"),
        (
            "rate",
            Thing(f=[{"x": print}]),
            r"run\.keep: rate\['f'\]\[0\]\['x'\] has the type builtin",
        ),
        ("taken", Thing(), "another object named 'taken' already"),
    ],
)
def test_what_cannot_be_kept_is_refused_when_it_is_named(
    name: str, thing: object, said: str
) -> None:
    with speedo.join({"w": np.zeros(1, np.float32)}) as run:
        run.keep("taken", Thing(n=1))
        with pytest.raises(ConfigError, match=said):
            run.keep(name, thing)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}\n", pack([]), pack({"module": None}), pack({"module": 3, "kept": {}}),
     pack({"module": {"optimizer": 3}, "kept": {}}),
     pack({"module": None, "kept": {"a": "text"}}), pack({"module": None, "kept": 1})],
)  # fmt: skip
def test_a_damaged_state_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError, match="the worker's state in the checkpoint is damaged"):
        ScriptState(None).restore(data)


def test_a_damaged_state_of_one_object_names_it() -> None:
    kept = ScriptState(None)
    kept.restore(pack({"module": None, "kept": {"rate": b"{"}}))
    with pytest.raises(PayloadError, match="the state of 'rate' in the checkpoint is damaged"):
        kept.keep("rate", Thing())


def test_a_state_that_cannot_be_saved_any_more_is_a_problem_of_the_checkpoint_alone() -> None:
    kept, thing, store = ScriptState(None), Thing(n=1), MemoryStore()
    kept.keep("thing", thing)
    place = Assignment(2, 1, 2, 3, 4)
    saved = kept.put(SaveState(2, 1, 7), place, store, "run:0", 40)
    assert saved == StateSaved(2, 1, 7, batches=10, rank=2, count=3, batch_size=4)
    assert take_history(store, "run:0", 2, 7) == kept.save()
    thing.state = {"f": {1, 2}}
    problem = kept.put(SaveState(2, 1, 8), place, store, "run:0", 40).problem
    assert problem.startswith("run.keep: thing['f'] has the type set, which cannot be saved")


@pytest.mark.torch
def test_the_optimizer_goes_on_and_another_one_is_refused() -> None:
    import torch

    from speedo.engines.pytorch.module_weights import ModuleWeights

    net = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))

    def kept_of(optimizer: torch.optim.Optimizer) -> ScriptState:
        return ScriptState(ModuleWeights(net, [optimizer]))

    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(4, 2)).sum().backward()
    adam.step()
    kept, random = kept_of(adam), Thing(state=torch.get_rng_state())
    kept.keep("random", random)
    data, other, again = kept.save(), torch.optim.Adam(net.parameters(), lr=9.0), Thing()
    fresh = kept_of(other)
    net[1].num_batches_tracked.zero_()
    fresh.restore(data)
    assert net[1].num_batches_tracked == 1
    fresh.keep("random", again)
    assert torch.equal(again.state["state"], random.state["state"])
    assert other.param_groups[0]["lr"] == adam.param_groups[0]["lr"]
    assert torch.equal(
        other.state[net[0].weight]["exp_avg_sq"], adam.state[net[0].weight]["exp_avg_sq"]
    )
    adam.param_groups[0]["lr"] = 0.25
    rate = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1 / (step + 1))
    adam.step()
    rate.step()
    kept.keep("rate", rate)
    third = torch.optim.Adam(net.parameters(), lr=9.0)
    fresh = kept_of(third)
    fresh.restore(kept.save())
    made = torch.optim.lr_scheduler.LambdaLR(third, lambda step: 1 / (step + 1))
    assert third.param_groups[0]["lr"] == 0.25, "a scheduler sets its first rate when it is made"
    fresh.keep("rate", made)
    assert (third.param_groups[0]["lr"], made.last_epoch) == (0.125, 1)
    with pytest.raises(EngineError, match="cannot be loaded into this SGD"):
        kept_of(torch.optim.SGD(net.parameters())).restore(data)
