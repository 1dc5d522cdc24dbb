"""Which snapshots a run leaves: those that Caffe leaves, from which plain Caffe goes on as the run itself does."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffenets.weight_files.solverstate import read_state
from speedo.engines import solverstate
from speedo.engines.caffe_import import load_caffe
from speedo.engines.parameters import Parameters
from speedo.engines.solver import read_solver
from speedo.engines.solver_history import history_from
from speedo.engines.solverstate import write_solverstate
from speedo.errors import EngineError, SolverError
from speedo.exchange.vector import Blob, Layout, Vector
from speedo.run.snapshot_files import mean_solverstate
from speedo.run_dir.directory import link_or_copy
from speedo.storage.memory_store import MemoryStore
from tests.support.commands import commands
from tests.support.nets import net_text, write_data, write_solver
from tests.support.solvers import TYPES
from tests.whole_runs.local import train_here

CASES: dict[str, dict[str, Any]] = {
    "none in between": {},
    "one in between": {"snapshot": 4},
    "in step with the end": {"snapshot": 3},
    "none after": {"snapshot_after_train": "false"},
    "none after, one in between": {"snapshot": 4, "snapshot_after_train": "false"},
    "none after, in step with the end": {"snapshot": 3, "snapshot_after_train": "false"},
    "in HDF5": {"snapshot": 4, "snapshot_format": "HDF5"},
}
EPOCH = 8  # iterations that read all 64 records: there plain Caffe, which starts at the first, reads on alike
STEPS = {"lr_policy": '"multistep"', "gamma": 0.5, "stepvalue": [3, 5, 11]}


def plain_solver(solver: Path) -> Any:
    caffe = load_caffe()
    caffe.set_mode_cpu()
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    with contextlib.chdir(solver.parent):
        return caffe.get_solver(str(solver))


def tiny_solver(folder: Path, **fields: Any) -> Path:
    (folder / "plain").mkdir()
    write_data(folder)
    text = net_text(train=f"{folder}/train", test=f"{folder}/test")
    prefix = f'"{folder}/plain/tiny"'
    return write_solver(folder, text, snapshot_prefix=prefix, **fields)


@pytest.mark.caffe
@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_a_run_leaves_the_snapshots_that_caffe_leaves(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    solver = tiny_solver(tmp_path, max_iter=6, **fields)
    plain_solver(solver).solve()
    result, _, _ = train_here(
        solver, MemoryStore(), tmp_path / "run", workers=2, mode="sync", checkpointed=True
    )
    assert result.complete
    expected = {file.name for file in (tmp_path / "plain").iterdir()}
    assert {file.name for file in (tmp_path / "run").glob("tiny*")} == expected
    last = tmp_path / "run" / "tiny_iter_6.caffemodel"
    if last.name in expected:
        assert last.read_bytes() == Path(result.model).read_bytes()


def losses_after(run: Path, iteration: int) -> list[float]:
    """The loss of each later iteration: the mean over the workers, which have equal batches."""
    found: dict[int, list[float]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "result" and event["iteration"] > iteration:
            own = event.get("losses") or [event["loss"]]
            for place, loss in enumerate(own):
                found.setdefault(event["iteration"] - len(own) + 1 + place, []).append(loss)
    return [float(np.mean(found[number])) for number in sorted(found)]


def continued(solver: Path, state: Path, iterations: int) -> tuple[list[float], Vector]:
    """The losses of plain Caffe from this `.solverstate` on, and its last weights."""
    plain = plain_solver(solver)
    plain.restore(str(state))
    assert plain.iter == EPOCH
    losses = []
    for _ in range(iterations):
        plain.step(1)
        losses.append(float(plain.net.blobs["loss"].data))
    parameters = Parameters(plain.net)
    vector = parameters.layout.zeros()
    parameters.read(vector)
    return losses, vector


def state_in(path: Path) -> Any:
    return read_state(path)


@pytest.mark.caffe
@pytest.mark.parametrize(
    ("workers", "form", "options"),
    [
        (1, "BINARYPROTO", {}),
        (2, "BINARYPROTO", {}),
        (2, "HDF5", {"team": "off"}),
        (2, "BINARYPROTO", {"servers": 2}),
    ],
    ids=["one worker", "two", "two without a team, HDF5", "two, with servers"],
)
@pytest.mark.parametrize("kind", TYPES)
def test_plain_caffe_goes_on_from_a_snapshot_as_the_run_itself_does(
    tmp_path: Path, kind: str, workers: int, form: str, options: dict[str, Any]
) -> None:
    """With one worker in sync to the bit: the state is the one that plain Caffe writes itself, too."""
    fields = {**STEPS, **TYPES[kind], "max_iter": 2 * EPOCH, "snapshot": EPOCH}
    solver = tiny_solver(tmp_path, snapshot_format=form, **fields)
    run = tmp_path / "run"
    gradients = workers > 1 and not read_solver(solver).update_is_linear  # as `prepare` chooses
    _, _, after = train_here(
        solver,
        MemoryStore(),
        run,
        workers=workers,
        mode="sync",
        checkpointed=True,
        server_gradient=gradients,
        **options,
    )
    name = f"tiny_iter_{EPOCH}.solverstate" + (".h5" if form == "HDF5" else "")
    losses, weights = continued(solver, run / name, EPOCH)
    assert losses == pytest.approx(losses_after(run, EPOCH), rel=1e-5)
    plain_solver(solver).step(EPOCH)  # which writes its own
    own, theirs = state_in(run / name), state_in(tmp_path / "plain" / name)
    assert own.learned_net == str(run / name.replace("solverstate", "caffemodel"))
    assert (
        (own.iteration, own.current_step) == (theirs.iteration, theirs.current_step) == (EPOCH, 2)
    )
    assert [one.shape for one in own.history] == [one.shape for one in theirs.history]
    if workers == 1:
        assert np.array_equal(weights, after)
        assert [one.read().tobytes() for one in own.history] == [
            one.read().tobytes() for one in theirs.history
        ]
    else:
        np.testing.assert_allclose(weights, after, rtol=1e-3, atol=1e-5)


@pytest.mark.caffe
@pytest.mark.redis
@pytest.mark.ray
@pytest.mark.slow
def test_so_does_a_run_of_the_command_with_several_testers(tmp_path: Path) -> None:
    """A team of two trains in stretches of its own, and ends one at the snapshot."""
    fields = {**STEPS, "max_iter": 2 * EPOCH, "snapshot": EPOCH, "test_interval": EPOCH}
    solver, run = tiny_solver(tmp_path, **fields), tmp_path / "run"
    with commands(tmp_path) as speedo:
        process = speedo.start(
            "train", str(solver), "--run-dir", str(run), "--test-interval", "testers=2"
        )
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    losses, _ = continued(solver, run / f"tiny_iter_{EPOCH}.solverstate", EPOCH)
    assert losses == pytest.approx(losses_after(run, EPOCH), rel=1e-5)
    assert state_in(run / f"tiny_iter_{2 * EPOCH}.solverstate").iteration == 2 * EPOCH
    caffe, sums = load_caffe(), [0.0, 0.0]
    net = caffe.Net(str(tmp_path / "net.prototxt"), str(run / "model.caffemodel"), caffe.TEST)
    for _ in range(2):
        sums = [sums[0] + float(net.forward()["accuracy"]), sums[1] + float(net.blobs["loss"].data)]
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert metrics == pytest.approx({"accuracy": sums[0] / 2, "loss": sums[1] / 2}, rel=1e-6)


@pytest.mark.caffe
@pytest.mark.parametrize("mode", ["async", "easgd"])
def test_where_each_worker_has_a_history_the_snapshot_has_their_mean(
    tmp_path: Path, mode: str
) -> None:
    solver = tiny_solver(tmp_path, max_iter=6, snapshot=4)
    run, store = tmp_path / "run", MemoryStore()
    train_here(solver, store, run, workers=2, mode=mode, checkpointed=True)
    for iteration in (4, 6):
        state = state_in(run / f"tiny_iter_{iteration}.solverstate")
        assert (state.iteration, state.learned_net) == (
            iteration,
            str(run / f"tiny_iter_{iteration}.caffemodel"),
        )
        values = np.concatenate([one.read().reshape(-1) for one in state.history])
        assert np.isfinite(values).all()
        assert np.abs(values).max() > 0
    plain = plain_solver(solver)
    plain.restore(str(run / "tiny_iter_4.solverstate"))
    plain.step(1)
    assert plain.iter == 5


def test_the_mean_of_histories_is_weighted_by_records() -> None:
    layout = Layout((Blob("ip/0", (1, 2)), Blob("ip/1", (2,))))
    first, second = (
        history_from("SGD", layout, write_solverstate(layout, [np.array(values, np.float32)], 9))
        for values in ([0, 4, 8, 12], [6, 4, 2, 0])
    )
    content = mean_solverstate("SGD", layout, [(first, 1), (second, 3)], 40, "model", 2)
    state = solverstate.read_state(content)
    assert (state.iter, state.learned_net, state.current_step) == (40, "model", 2)
    assert [np.frombuffer(one.data, "<f4").tolist() for one in state.history] == [
        [4.5, 4.0],
        [3.5, 3.0],
    ]
    with pytest.raises(EngineError, match="no worker gave its solver history"):
        mean_solverstate("SGD", layout, [], 40, "model", 2)


@pytest.mark.caffe
def test_a_run_in_hdf5_can_be_resumed_from_its_snapshot(tmp_path: Path) -> None:
    fields = {"max_iter": 2 * EPOCH, "snapshot": EPOCH, "snapshot_format": "HDF5"}
    solver = tiny_solver(tmp_path, **fields)
    _, _, after = train_here(
        solver, MemoryStore(), tmp_path / "run", workers=1, mode="sync", checkpointed=True
    )
    _, _, again = train_here(
        solver,
        MemoryStore(),
        tmp_path / "again",
        workers=1,
        mode="sync",
        resume=tmp_path / "run" / f"tiny_iter_{EPOCH}.solverstate.h5",
    )
    assert np.array_equal(again, after)


@pytest.mark.caffe
def test_what_cannot_be_written_is_told_and_training_goes_on(tmp_path: Path) -> None:
    solver, run = tiny_solver(tmp_path, max_iter=6, snapshot=2), tmp_path / "run"
    notices: list[str] = []

    def refuse(path: Path, target: Path) -> Path:
        if target.name == "tiny_iter_2.solverstate":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    rename = Path.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        result, _, _ = train_here(
            solver, MemoryStore(), run, workers=1, mode="sync", checkpointed=True, notices=notices
        )
    assert result.complete
    problem = f"no {run / 'tiny_iter_2.solverstate'}: No space left on device"
    assert f"warning: {problem}" in notices
    told = [
        (event["iteration"], event["problem"])
        for event in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        if event["event"] == "snapshot"
    ]
    assert told == [(2, problem), (4, None), (6, None)]
    found = {file.name for file in run.glob("tiny*")}
    assert "tiny_iter_2.solverstate" not in found
    assert {"tiny_iter_2.caffemodel", "tiny_iter_4.solverstate", "tiny_iter_6.solverstate"} <= found


@pytest.mark.caffe
def test_layer_names_that_hdf5_cannot_hold_are_refused(tmp_path: Path) -> None:
    solver = tiny_solver(tmp_path, snapshot_format="HDF5")
    net = solver.with_name("net.prototxt")
    net.write_text(net.read_text().replace('name: "conv"', 'name: "a/conv"'))
    with pytest.raises(SolverError, match="cannot read a layer named 'a/conv': use BINARYPROTO"):
        read_solver(solver)


@pytest.mark.caffe
def test_snapshot_diff_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SolverError, match="snapshot_diff is true"):
        read_solver(tiny_solver(tmp_path, snapshot_diff="true"))


@pytest.mark.parametrize("links", [True, False])
def test_a_second_name_is_whole_and_may_be_given_again(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise OSError("no links here")

        monkeypatch.setattr("os.link", refuse)
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("new")
    other.write_text("old")
    for _ in range(2):
        link_or_copy(file, other)
    assert other.read_text() == "new"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "other"]
