"""`speedo.join` in a script that runs by itself: what it takes, what it refuses, and that nothing is exchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import speedo
from speedo.errors import ConfigError


def test_each_epoch_has_every_record_once() -> None:
    w, seen = np.zeros(2, np.float32), list[list[int]]()
    with speedo.join({"w": w}) as run:
        for epoch in run.epochs(2):
            seen.append([])
            for numbers in run.share(np.arange(10), batch=4, shuffle=True):
                seen[epoch] += numbers.tolist()
                run.step(loss=0.5)
        assert (run.rank, run.size, run.iteration, run.should_stop) == (0, 1, 6, False)
    assert [sorted(one) for one in seen] == [list(range(10))] * 2
    assert seen[0] != seen[1]


def test_records_of_which_no_step_was_made_do_not_keep_the_loop_waiting() -> None:
    """A script that steps after every second batch of five."""
    w = np.zeros(2, np.float32)
    given = 0
    with speedo.join({"w": w}) as run:
        for _ in run.epochs(1):
            for number, _ in enumerate(run.share(np.arange(10), batch=2)):
                given += 1
                if number % 2:
                    run.step()
    assert given == 5


def test_an_array_that_is_rebound_is_refused_at_the_next_step() -> None:
    arrays = {"w": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}
    with speedo.join(arrays) as run:
        arrays["w"] += 1
        run.step()
        arrays["b"] = arrays["b"] + 1
        with pytest.raises(ConfigError, match="array 'b' is another one than that given"):
            run.step()


@pytest.mark.parametrize("breaks", [False, True])
def test_batches_without_a_step_are_refused(breaks: bool) -> None:
    """At the end of the epoch, or at that of the block."""

    def train() -> None:
        with speedo.join({"w": np.zeros(2, np.float32)}) as run:
            for epoch in run.epochs(2):
                assert epoch == 0
                for number, _ in enumerate(run.share(np.arange(202), batch=2)):
                    if breaks and number:
                        return

    with pytest.raises(ConfigError, match=r"no step was made with them: call run\.step\(\)"):
        train()


def test_gradients_may_be_added_up_over_short_epochs() -> None:
    with speedo.join({"w": np.zeros(2, np.float32)}) as run:
        for _ in run.epochs(2):
            for _ in run.share(np.arange(6), batch=2):
                pass
        run.step()
    assert run.iteration == 1


def test_code_deep_in_a_script_finds_the_run() -> None:
    with pytest.raises(ConfigError, match="no run is joined here"):
        speedo.current()
    with speedo.join({"w": np.zeros(1, np.float32)}) as run:
        assert speedo.current() is run
        with pytest.raises(ConfigError, match=r"speedo\.join is called inside another"):
            speedo.join({"w": np.zeros(1, np.float32)})
    with pytest.raises(ConfigError, match="no run is joined here"):
        speedo.current()


def test_a_script_that_raises_leaves_no_run_behind() -> None:
    with pytest.raises(KeyError), speedo.join({"w": np.zeros(1, np.float32)}):
        raise KeyError
    with speedo.join({"w": np.zeros(1, np.float32)}) as run:
        assert run.rank == 0


@pytest.mark.parametrize(
    ("model", "optimizer", "said"),
    [
        (
            3,
            None,
            "takes a torch.nn.Module, a list of them, or a mapping of names to NumPy arrays, not int",
        ),
        ({}, None, "there is no array to train"),
        ({"n": np.zeros(2, np.int64)}, None, "array 'n' has the type int64"),
        ({"w": np.zeros(2)}, object(), "an optimizer or a scheduler is for a torch.nn.Module"),
    ],
)
def test_what_cannot_be_trained_is_refused(model: object, optimizer: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        speedo.join(model, optimizer)


def test_what_has_no_numbered_records_cannot_be_shared() -> None:
    with speedo.join({"w": np.zeros(1, np.float32)}) as run:
        with pytest.raises(ConfigError, match="cannot divide a generator"):
            list(run.share(one for one in range(3)))
        with pytest.raises(ConfigError, match="at least 1 epoch"):
            list(run.epochs(0))


def test_the_weights_are_saved_by_their_names(tmp_path: Path) -> None:
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    with speedo.join({"w": w, "b": np.ones(3, np.float32)}) as run:
        run.save(tmp_path / "weights.npz")
    saved = np.load(tmp_path / "weights.npz")
    assert saved["w"].tolist() == w.tolist()
    assert saved["b"].tolist() == [1.0, 1.0, 1.0]


def test_collectives_of_one_worker_are_its_own() -> None:
    with speedo.join({"w": np.zeros(1, np.float32)}) as run:
        x = np.array([1.0, 2.0])
        assert run.all_reduce(x, "mean") is x
        assert x.tolist() == [1.0, 2.0]
        assert run.all_gather(x).tolist() == [[1.0, 2.0]]
        assert run.broadcast(x).tolist() == [1.0, 2.0]
        run.barrier()
        with pytest.raises(ConfigError, match="take NumPy arrays and tensors, not float"):
            run.all_reduce(1.0)
