"""`speedo.join` in a script that runs by itself: what it takes, what it refuses, and that nothing is exchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import speedo
from speedo.errors import ConfigError, ScriptMistake


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


def test_a_second_loop_of_epochs_has_the_next_ones_of_the_run() -> None:
    """A loop that was left is followed by the epoch after the one that it was in, with what that has left."""
    w, seen = np.zeros(2, np.float32), list[tuple[int, list[int]]]()
    with speedo.join({"w": w}) as run:
        for count, start in ((3, 0), (2, 7)):
            for epoch in run.epochs(count, start=start):
                for numbers in run.share(np.arange(10), batch=5, shuffle=True):
                    seen.append((epoch, numbers.tolist()))
                    run.step()
                    if epoch == 1:
                        break
                if epoch == 1:
                    break
    assert [epoch for epoch, _ in seen] == [0, 0, 1, 7, 7, 7, 8, 8]
    batches = [
        sorted(first + second)
        for (_, first), (_, second) in zip(seen[::2], seen[1::2], strict=True)
    ]
    assert batches == [list(range(10))] * 4
    assert len({tuple(numbers) for _, numbers in seen}) == 8


def test_shared_data_has_a_length_and_begins_an_epoch_when_it_is_iterated() -> None:
    with speedo.join({"w": np.zeros(2, np.float32)}) as run:
        run.size = 4
        shared = run.share(np.arange(10), batch=2)
        assert [len(run.share(np.arange(10), batch=2)), len(shared)] == [2, 2]
        assert next(shared).tolist() == [0, 1]
        for _ in range(2):
            for _ in shared:
                run.step()
    assert run._share.epoch == 2
    assert run.iteration == 9


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
        with pytest.raises(ScriptMistake, match=r"speedo\.join is called inside another"):
            speedo.join({"w": np.zeros(1, np.float32)})
    with pytest.raises(ConfigError, match="no run is joined here"):
        speedo.current()


def test_a_script_joins_one_run_and_a_notebook_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run, where the second was refused, and a script by itself went on."""
    early = speedo.join({"w": np.zeros(1, np.float32)})
    with pytest.raises(KeyError), speedo.join({"w": np.zeros(1, np.float32)}):
        raise KeyError
    with pytest.raises(ScriptMistake, match=r"is called once more: a script joins one run; train"):
        speedo.join({"w": np.zeros(1, np.float32)})
    with pytest.raises(ScriptMistake, match="is called once more"), early:
        pass
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
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


@pytest.mark.torch
def test_the_first_worker_writes_weights_arrays_and_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    with speedo.join({"w": w, "b": np.ones(3, np.float32)}) as run:
        run.save(tmp_path / "weights.npz")
        run.save(
            tmp_path / "arrays.npz", {"file": w, "t": torch.ones(2, requires_grad=True), "n": 3}
        )
        run.save(str(tmp_path / "state.pt"), {"epoch": 2, "t": torch.ones(2)})
        for wrong in ([1.0], {"w": object()}, {"w": torch.ones(2, dtype=torch.bfloat16)}):
            with pytest.raises(ConfigError, match=r"arrays.npz cannot hold what it was given \("):
                run.save(tmp_path / "arrays.npz", wrong)
        run.print("loss", 0.5, sep="=")
        assert run.is_first
        run.is_first = False
        run.print("not shown")
        run.save(tmp_path / "other.npz")
    assert capsys.readouterr().out == "loss=0.5\n"
    saved = np.load(tmp_path / "weights.npz")
    assert saved["w"].tolist() == w.tolist()
    assert saved["b"].tolist() == [1.0, 1.0, 1.0]
    saved = np.load(tmp_path / "arrays.npz")  # what could not be written has changed nothing
    assert (saved["file"].tolist(), saved["t"].tolist(), saved["n"]) == (w.tolist(), [1.0, 1.0], 3)
    state = torch.load(tmp_path / "state.pt")
    assert (state["epoch"], state["t"].tolist()) == (2, [1.0, 1.0])
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "arrays.npz",
        "state.pt",
        "weights.npz",
    ]


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
