"""The original SpeeDO's options: taken, told by our names, or refused with what to use instead."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from speedo.cli.main import main
from speedo.cli.original_options import NAMES, for_a_run, for_a_worker
from speedo.errors import ConfigError
from speedo.run.config.run_config import RunConfig, make_config


def parsed(command: str, line: str) -> dict[str, object]:
    """The parameters of a command that were given."""
    context = main.commands[command].make_context(command, shlex.split(line))
    return {name: value for name, value in context.params.items() if value not in (None, ())}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--maxIter 1000", {"max_iter": 1000}),
        ("--maxIter=1000", {"max_iter": 1000}),
        ("--test 500", {"test_interval": 500}),
        ("--test 0", {"test_interval": 0}),
        ("--train 4", {"local_steps": "4"}),
        ("--weightDecay 0.1", {"weight_decay": 0.1}),
        ("--worker 3", {"workers": 3}),
        ("--factor 4", {"delta_scale": 0.25}),
        ("--gradientOnly", {"server_gradient": True}),
        ("--sync", {"mode": "sync"}),
        ("--maxAdvance 2", {"mode": "partial", "max_advance": 2}),
        ("--weedout 3", {"mode": "weed-out", "window": 3}),
        ("--drop 3", {"mode": "weed-out", "window": 3}),
        ("--movingRate 0.5", {"mode": "easgd", "moving_rate": 0.5}),
        ("--maxAdvance 2 --movingRate 0.5", {"mode": "partial", "max_advance": 2, "moving_rate": 0.5}),
        ("--movingRate 0.5 --mode weed-out", {"mode": "weed-out", "moving_rate": 0.5}),
        ("--lr 0.1 --momentum 0.9 --batch 8", {"lr": 0.1, "momentum": 0.9, "batch": 8}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["train", "master"])
def test_an_option_of_the_original_does_what_ours_does(
    command: str, theirs: str, ours: dict[str, object]
) -> None:
    params = parsed(command, theirs)
    assert params == ours
    make_config({name: value for name, value in params.items() if name in RunConfig.model_fields})


def test_the_solver_of_the_original_is_ours() -> None:
    params = parsed("train", "--solver net/solver.prototxt --maxIter 5")
    assert (str(params["solver"]), params["max_iter"]) == ("net/solver.prototxt", 5)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("-solver=s.prototxt -gpu 0", {"solver": Path("s.prototxt"), "device": "cuda:0"}),
        ("--solver s.prototxt --gpu=all", {"solver": Path("s.prototxt"), "device": "cuda"}),
        ("-gpu 0,1", {"device": "cuda"}),
        ("-snapshot a_iter_5.solverstate", {"resume": Path("a_iter_5.solverstate")}),
        ("--snapshot=a_iter_5.solverstate.h5", {"resume": Path("a_iter_5.solverstate.h5")}),
        ("--snapshot a.caffemodel", {"weights": Path("a.caffemodel")}),
        ("-weights a.caffemodel,b.caffemodel", {"weights": Path("a.caffemodel,b.caffemodel")}),
    ],
)
@pytest.mark.parametrize("command", ["train", "master"])
def test_an_option_of_caffes_command_does_what_it_does_there(
    command: str, theirs: str, ours: dict[str, object]
) -> None:
    assert parsed(command, theirs) == ours


def test_caffes_test_is_ours() -> None:
    given = parsed("test", "-model n.prototxt -weights m.caffemodel -iterations 7 -gpu 1")
    assert {name: given[name] for name in ("solver", "weights", "iterations", "device")} == {
        "solver": Path("n.prototxt"), "weights": Path("m.caffemodel"), "iterations": 7, "device": "cuda:1",
    }  # fmt: skip


def test_each_is_told_by_its_name_here() -> None:
    result = CliRunner().invoke(
        main, ["master", "--test", "500", "--maxIter", "1000", "--movingRate", "0.5", "--help"]
    )
    assert result.exit_code == 0
    for line in (
        "speedo: --test is now --test-interval 500",
        "speedo: --maxIter is now --max-iter 1000",
        "speedo: --movingRate is now --moving-rate 0.5",
        "speedo: the mode of this strategy is --mode easgd",
    ):
        assert line in result.output.splitlines()


def test_our_own_words_are_left_as_they_are() -> None:
    words = ["s.prototxt", "--max-iter", "5", "--mode=easgd", "--run-dir", "a b", "--", "--test"]
    assert for_a_run(words) == (words, [])
    words = ["--master", "10.0.0.5", "--workers", "2"]
    assert for_a_worker(words) == (words, [])


def test_an_actors_address_is_a_master_and_a_workers_own_is_not_needed() -> None:
    words, notes = for_a_worker(
        shlex.split(
            "--host 10.0.0.6 --master akka.tcp://SpeeDO@10.0.0.5:56126/user/host --worker 2"
        )
    )
    assert words == ["--master", "10.0.0.5:56126", "--workers", "2"]
    assert len(notes) == 3
    assert "not needed" in notes[0]


# What only the solver or another file shows is found beside the start of Ray.
HEAD = pytest.mark.processes


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--hybrid =sync =maxIter 2", "--hybrid of the original SpeeDO does not exist here: use --mode hybrid"),
        ("--startIter 100", "use --resume RUN"),
        pytest.param("--device 0", "--device 0 is now --device cuda:0", marks=HEAD),
        pytest.param("--device 0", "with the engine caffe the solver's solver_mode decides", marks=HEAD),
        ("--factor 0", "--factor is '0': use a number above 0"),
        ("--maxIter", "--maxIter wants a value"),
        ("-iterations 50", "--iterations of Caffe's command does not exist here: use --max-iter N"),
        ("--model n.prototxt", "the solver names the nets"),
        ("-stage=deploy", "write it into the solver, as in train_state"),
        ("-level 1", "write it into the solver"),
        ("-phase TRAIN", "workers train in TRAIN"),
        ("-sigint_effect snapshot", "Ctrl-C ends the run, which tests and exports its model"),
        ("-sighup_effect none", "use nohup"),
        pytest.param(
            "--resume m.caffemodel", "give the .solverstate beside it, or begin a run from it with --weights",
            marks=HEAD
        ),
        ("--weights no.caffemodel,none.caffemodel", "weights names none.caffemodel, which is not a file"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_with_what_to_use(line: str, words: str) -> None:
    result = CliRunner().invoke(main, ["train", *shlex.split(line)])
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["train", "master", "worker"])
def test_none_of_them_hides_an_option_of_ours(command: str) -> None:
    own = {name for one in main.commands[command].params for name in one.opts}
    assert not NAMES & own


def test_a_master_without_a_value_is_complained_of_as_ever() -> None:
    with pytest.raises(ConfigError, match="--master wants a value"):
        for_a_worker(["--master"])
