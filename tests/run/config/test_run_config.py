"""One configuration, built once: every mistake is told, all at once, each with its value and its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from speedo.errors import ConfigError
from speedo.run.config.formats import parse_phase
from speedo.run.config.run_config import make_config

HYBRID = {"mode": "hybrid", "phases": [{"mode": "sync", "iterations": 5}]}


def problems(options: dict[str, Any], file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        make_config(options, file=file)
    return caught.value.problems


def hybrid(**phase: Any) -> dict[str, Any]:
    return {"mode": "hybrid", "phases": [{"mode": "async", "iterations": 5, **phase}]}


def test_threads_are_a_number_or_auto_in_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for written, threads in (("4", "4"), ("auto", "auto"), ("'2'", "2")):
        file.write_text(f"threads: {written}\nbind: core\n")
        config = make_config({}, file=file)
        assert (config.threads, config.bind) == (threads, "core")
    assert (make_config({}).threads, make_config({}).bind) == ("1", "none")


def test_nothing_given_is_a_synchronous_run_of_two_workers() -> None:
    config = make_config({})
    assert (config.mode, config.workers, config.min_workers, config.local_steps) == (
        "sync",
        2,
        1,
        1,
    )
    assert (config.host, config.port, config.timeout) == ("127.0.0.1", 56126, 120.0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"threads": "0"}, "threads is '0': use 1 to 1024, or auto"),
        ({"threads": 2000}, "threads is '2000': use 1 to 1024, or auto"),
        ({"threads": "many"}, "threads is 'many': use 1 to 1024, or auto"),
        ({"bind": "chip"}, "bind is 'chip'; use one of 'core', 'socket' or 'none'"),
        ({"local_steps": 0}, "local_steps is 0: a turn needs a step; use 1 or more"),
        ({"mode": "easgd", "moving_rate": 1.0},
         ("moving_rate is 1.0: the pull must be above 0 and below 1; 0.9 divided by the"
         " number of workers is the usual choice")),
        ({"mode": "easgd", "moving_rate": float("nan")},
         ("moving_rate is nan: the pull must be above 0 and below 1; 0.9 divided by the"
         " number of workers is the usual choice")),
        ({"mode": "sync", "moving_rate": 0.3},
         ("moving_rate is 0.3, but mode sync does not use it; use --mode partial, easgd or "
         "weed-out, or leave moving_rate out")),
        ({"mode": "partial", "moving_rate": 0.3, "delta_scale": 1},
         ("delta_scale is 1.0 together with moving_rate 0.3: elastic averaging merges weights, not "
         "deltas; leave one of the two out")),
        ({"mode": "async", "max_advance": 2},
         ("max_advance is 2, but mode async does not use it; use --mode partial, or leave max_advance "
         "out")),
        ({"mode": "sync", "overlap": "all"},
         ("overlap is all, but in mode sync a turn needs other workers' results; use --mode async or easgd, or "
         "leave overlap out")),
        ({"mode": "async", "overlap": "far", "server_gradient": True},
         ("overlap is far together with server_gradient, whose updates only the master can apply; leave one of the "
         "two out")),
        ({"servers": "many"}, "servers is 'many': use 0 to 64, or auto"),
        ({"servers": 65}, "servers is '65': use 0 to 64, or auto"),
        ({"overlap": "near"}, "overlap is 'near'; use one of 'far', 'all' or 'none'"),
        ({"mode": "partial", "max_advance": 0},
         "max_advance is 0: every worker would wait forever; use 1 or more"),
        ({"mode": "partial", "window": 3},
         "window is 3, but mode partial does not use it; use --mode weed-out, or leave window out"),
        ({"mode": "weed-out", "window": 0},
         "window is 0: every result would be discarded; use 1 or more"),
        ({"delta_scale": 0}, "delta_scale is 0.0: use a factor above 0, usually at most 1"),
        ({"delta_scale": 11}, "delta_scale is 11.0: use a factor above 0, usually at most 1"),
        ({"mode": "easgd", "delta_scale": 1},
         ("delta_scale is 1.0, but mode easgd does not use it; use --mode sync, async, partial or weed-out, or "
         "leave delta_scale out")),
        ({"mode": "partial", "moving_rate": 0.3, "server_gradient": True},
         "server_gradient and elastic averaging cannot be combined; leave one out"),
        ({"mode": "easgd", "server_gradient": True},
         ("server_gradient is True, but mode easgd does not use it; use --mode sync, async, partial or weed-out, "
         "or leave server_gradient out")),
        ({"server_gradient": True, "local_steps": 2},
         ("server_gradient with local_steps 2: a raw gradient is that of one set of weights; use local_steps"
         " 1, and --batch for more samples per gradient")),
        ({"server_gradient": True, "delta_scale": 1},
         "server_gradient sends no deltas; leave delta_scale out"),
        ({"mode": "async", "backup_workers": 1},
         ("backup_workers is 1, but mode async does not use it; use --mode sync, or leave backup_workers "
         "out")),
        ({"backup_workers": -1}, "backup_workers is -1: use 0 or more"),
        ({"workers": 3, "backup_workers": 3},
         ("backup_workers is 3 of 3 workers: a round would wait for no worker; use a number below that of "
         "workers")),
        ({"mode": "hybrid", "workers": 2,
          "phases": [{"mode": "sync", "iterations": 5, "backup_workers": 2}]},
         ("phase 1 (sync): backup_workers is 2 of 2 workers: a round would wait for no worker; use a "
         "number below that of workers")),
        ({**HYBRID, "backup_workers": 1},
         ("backup_workers is given for mode hybrid; give it to a phase, as in --phase "
         "easgd:1000,backup_workers=...")),
        ({"redis": "redis://h:6379", "redis_tls": True},
         ("redis_tls is for the Redis that SpeeDO starts, but redis names your own; leave redis_tls out, "
         "and write its URL as rediss://...")),
        ({"compress": "float16"},
         ("compress is 'float16'; use none, bfloat16, int8, or topk:F or sparse:F with a fraction F above 0 "
         "and up to 0.5, as in topk:0.01")),
        ({"compress": "topk:1"},
         ("compress is 'topk:1'; use none, bfloat16, int8, or topk:F or sparse:F with a fraction F above 0 "
         "and up to 0.5, as in topk:0.01")),
        ({"compress": "topk:0.01", "mode": "easgd"},
         ("compress is topk:0.01, but elastic averaging sends weights, and a fraction of them is not a model; "
         "use bfloat16 or int8")),
        ({"compress": "sparse:0.02", "mode": "partial", "moving_rate": 0.3},
         ("compress is sparse:0.02, but elastic averaging sends weights, and a fraction of them is not a model; "
         "use bfloat16 or int8")),
        ({"compress": "topk:0.01", "mode": "hybrid",
          "phases": [{"mode": "sync", "iterations": 5}, {"mode": "easgd", "iterations": 5}]},
         ("compress is topk:0.01, but elastic averaging sends weights, and a fraction of them is not a model; "
         "use bfloat16 or int8")),
        ({"compress_center": "int8"}, "compress_center is 'int8'; use one of 'none' or 'bfloat16'"),
        ({"workers": 0}, "workers is 0: use 1 to 10000"),
        ({"workers": 10_001}, "workers is 10001: use 1 to 10000"),
        ({"min_workers": 3}, "min_workers is 3: use 1 up to the 2 of workers"),
        ({"min_workers": 0}, "min_workers is 0: use 1 up to the 2 of workers"),
        ({"mode": "hybrid"},
         ("mode hybrid has no phases; give at least one, for example --phase sync:500 --phase "
         "easgd:1000")),
        ({"phases": HYBRID["phases"]}, "phases are given, but the mode is sync; use --mode hybrid"),
        ({**HYBRID, "delta_scale": 1},
         ("delta_scale is given for mode hybrid; give it to a phase, as in --phase "
         "easgd:1000,delta_scale=...")),
        (hybrid(iterations=0), "phase 1 (async): it has 0 iterations; use 1 or more"),
        (hybrid(max_advance=1),
         ("phase 1 (async): max_advance is 1, but mode async does not use it; use --mode partial, or "
         "leave max_advance out")),
        ({"max_iter": 0}, "max_iter is 0: use 1 or more"),
        ({"test_interval": -1}, "test_interval is -1: use 0 or more"),
        ({"batch": 0}, "batch is 0: use 1 or more"),
        ({"seed": -1}, "seed is -1: use 0 or more"),
        ({"lr": 0}, "lr is 0.0: use a learning rate above 0"),
        ({"lr": float("inf")}, "lr is inf: use a learning rate above 0"),
        ({"momentum": 1}, "momentum is 1.0: use 0 up to, not including, 1"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1: use 0 or more"),
        ({"port": 65_536}, "port is 65536: use 1 to 65535, 56126 by default"),
        ({"timeout": 0}, "timeout is 0.0: use a number of seconds above 0"),
        ({"join_timeout": -1}, "join_timeout is -1.0: use a number of seconds above 0"),
        ({"weights": "no/such.caffemodel"},
         ("weights names no/such.caffemodel, which is not a file; give a .caffemodel, or for a script an .npz of a run "
         "or a state dict of PyTorch's (.pt)")),
        ({"python_layers": "layers.scale,a-b"},
         ("python_layers names 'a-b', which is not a module; use names as in layers.scale,others")),
        ({"workers": "many"}, "workers is 'many'; use a whole number"),
        ({"lr": "fast"}, "lr is 'fast'; use a number"),
        ({"split_batch": "perhaps"}, "split_batch is 'perhaps'; use true or false"),
        ({"mode": "asynch"},
         "mode is 'asynch'; use one of 'sync', 'async', 'partial', 'easgd', 'weed-out' or 'hybrid'"),
        ({"moving_rat": 0.3}, "moving_rat is no option; did you mean moving_rate?"),
        (hybrid(localsteps=3), "phase 1: localsteps is no option; did you mean local_steps?"),
        ({"mode": "hybrid", "phases": [{"mode": "sync"}]},
         "phase 1 (sync) has no end; give its iterations, as in sync:500, or a condition, as in sync:accuracy>=0.8"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_remedy(options: dict[str, Any], problem: str) -> None:
    assert problem in problems(options)


def test_no_backup_workers_can_be_said_in_any_mode() -> None:
    """As the files of earlier runs do."""
    assert make_config({"mode": "async", "backup_workers": 0}).mode == "async"
    assert make_config({**HYBRID, "backup_workers": 0}).mode == "hybrid"


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {"mode": "partial", "max_advance": 0, "window": 2, "workers": 0, "lr": -1.0, "port": 0}
    assert [problem.split(" is ")[0] for problem in problems(wrong)] == [
        "max_advance",
        "window",
        "workers",
        "lr",
        "port",
    ]


def test_all_of_the_wrong_type_are_told_at_once() -> None:
    wrong = {"workers": "two", "lr": "low", "wat": 1, "mode": "fast"}
    assert sorted(problem.split(" is ")[0] for problem in problems(wrong)) == [
        "lr",
        "mode",
        "wat",
        "workers",
    ]


def test_options_go_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("mode: easgd\nmoving-rate: 0.2\nworkers: 8\n")
    config = make_config({"workers": 3, "moving_rate": None}, file=file)
    assert (config.mode, config.moving_rate, config.workers) == ("easgd", 0.2, 3)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("# later\n")
    assert make_config({}, file=file) == make_config({})


def test_a_mistake_in_the_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("workers: many\n")
    assert problems({}, file) == (f"workers in {file} is 'many'; use a whole number",)


def test_what_is_no_yaml_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("mode: sync\nworkers: [2\nlr: 0.1\n")
    (problem,) = problems({}, file)
    assert problem.startswith(f"the configuration {file}: line 3 is not YAML: ")
    assert problem.endswith("write one 'option: value' per line")


def test_a_file_of_something_else_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("- sync\n- 2\n")
    assert problems({}, file) == (
        f"the configuration {file} contains no options; write one 'option: value' per line",
    )
    file.write_bytes(b"\xff\xfe\x00")
    assert "is not YAML" in problems({}, file)[0]


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    (problem,) = problems({}, tmp_path / "no.yaml")
    assert "cannot be read (No such file or directory)" in problem


def test_a_yaml_file_makes_no_objects(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("mode: !!python/object/apply:os.system ['true']\n")
    assert "line 1 is not YAML" in problems({}, file)[0]


def test_a_phase_is_written_as_mode_iterations_and_options() -> None:
    assert parse_phase("easgd:1000,moving-rate=0.3,local_steps=10") == {
        "mode": "easgd",
        "iterations": 1000,
        "moving_rate": "0.3",
        "local_steps": "10",
    }
    config = make_config({"mode": "hybrid", "phases": [parse_phase("easgd:7,moving_rate=0.3")]})
    assert (config.phases[0].iterations, config.phases[0].moving_rate) == (7, 0.3)


@pytest.mark.parametrize("text", ["sync:", "sync:ten", "sync:-5", "easgd:10,moving_rate"])
def test_a_phase_of_another_form_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not of the form .*; for example"):
        parse_phase(text)


@pytest.mark.parametrize(
    ("options", "splits"),
    [
        ({"mode": "sync"}, True),
        ({"mode": "async"}, False),
        (HYBRID, True),
        (hybrid(), False),
        ({"mode": "sync", "split_batch": False}, False),
        ({"mode": "easgd", "split_batch": True}, True),
    ],
)
def test_the_batch_is_split_where_rounds_are_synchronous(
    options: dict[str, Any], splits: bool
) -> None:
    assert make_config(options).splits_batch == splits


def test_modules_of_python_layers_are_given_with_commas() -> None:
    assert make_config({}).python_modules == ()
    assert make_config({"python_layers": "layers.scale, other"}).python_modules == (
        "layers.scale",
        "other",
    )


def test_lost_workers_are_waited_for_as_long_as_any() -> None:
    assert make_config({"timeout": 30}).seconds_to_join == 30.0
    assert make_config({"timeout": 30, "join_timeout": 5}).seconds_to_join == 5.0


@pytest.mark.parametrize(
    "compress", ["none", "bfloat16", "int8", "topk:0.5", "topk:1e-4", "sparse:0.02"]
)
def test_what_can_be_compressed_is_let_through(compress: str) -> None:
    assert make_config({"compress": compress, "mode": "weed-out"}).compress == compress


@pytest.mark.parametrize("compress", ["bfloat16", "int8"])
def test_weights_can_be_rounded(compress: str) -> None:
    assert make_config({"compress": compress, "mode": "easgd"}).compress == compress
