"""The pages, the two ways to say the same, and streams that nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import speedo
from speedo.cli.main import main
from speedo.errors import ConfigError
from speedo.run.config.run_config import RunConfig
from speedo.run.prepare import prepare
from speedo.run.result import RunResult
from tests.data.makers import idx_folder
from tests.support.nets import net_text, write_data, write_solver

RUN_OPTIONS = [
    "--mode",
    "--workers",
    "--max-iter",
    "--test-interval",
    "--moving-rate",
    "--max-advance",
    "--window",
    "--local-steps",
    "--delta-scale",
    "--phase",
    "--weights",
    "--lr",
    "--momentum",
    "--weight-decay",
    "--batch",
    "--seed",
    "--device",
    "--redis",
    "--timeout",
    "--run-dir",
    "--config",
]


def page(*command: str) -> str:
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0
    return result.output


def typed(*arguments: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "speedo", *arguments],
        text=True, timeout=60, check=False, **{"stderr": subprocess.PIPE, **streams},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", RUN_OPTIONS),
        ("master", [*RUN_OPTIONS, "--host", "--port", "--token-file", ",tls=yes|no"]),
        ("worker", ["--master", "--workers", "--timeout", "--data-root", "--token-file"]),
    ],
)
def test_the_page_of_a_command_has_every_option(command: str, options: list[str]) -> None:
    words = (
        page(command, "--help-all" if command != "worker" else "--help").replace("/", " ").split()
    )
    assert [option for option in options if option not in words] == []


def test_every_option_of_a_run_can_stand_in_the_configuration_and_has_its_words() -> None:
    fields = set(RunConfig.model_fields)
    for name, command in main.commands.items():
        if name in ("train", "master"):
            options = [one for one in command.params if isinstance(one, click.Option)]
            parts = {row.name for one in options for row in getattr(one, "parts", ())}
            assert not any(one.hidden for one in options)
            named = {parameter.name for parameter in command.params} | parts
            assert named - fields <= {"config_file", "token_file", "standby"}
            assert all(one.help for one in options)
            missing = fields - named
            ray = {"ray", "resources", "placement"} if name == "master" else set[str]()
            assert missing - {"script", "script_folder", "foreign", "code_from"} == ray


LONG = ["train", "master", "run", "launch", "compare", "plan", "doctor"]


@pytest.mark.parametrize("command", LONG)
def test_a_page_shows_what_most_runs_use_in_sixty_lines(command: str) -> None:
    short, whole = page(command, "--help"), page(command, "--help-all")
    assert len(short.splitlines()) <= 60
    assert "--help-all" in short
    assert len(whole.splitlines()) > len(short.splitlines())


def test_the_page_of_train_has_the_usual_options_by_their_first_clause() -> None:
    usual = {
        "--mode",
        "--workers",
        "--local-steps",
        "--moving-rate",
        "--max-iter",
        "--lr",
        "--batch",
    }
    usual |= {
        "--weights",
        "--resume",
        "--run-dir",
        "--engine",
        "--device",
        "--ray",
        "--config",
        "--host",
    }
    text = page("train", "--help")
    assert usual <= set(text.split())
    assert ",stretch=" not in text
    assert "The SGD mode.  [default: sync]" in text
    assert "package.module:Class" not in text


def test_the_whole_page_of_train_is_by_subject() -> None:
    lines = page("train", "--help-all").splitlines()
    headings = [line for line in lines if line and line[0] != " "][1:]
    assert headings == [
        "How results are merged:", "How results travel:", "Instead of the solver's values:",
        "What a run starts from and writes:", "What computes:", "Data:", "Tests, and the end of a run:",
        "Workers that join and leave:", "Output for other tools:",
        "On an existing Ray cluster:", "How workers connect:", "Help:",
    ]  # fmt: skip


def test_the_page_of_data_names_every_dataset() -> None:
    text = page("data", "--help")
    for name in ("fashion-mnist", "mnist", "cifar10", "images", "--data-root"):
        assert name in text


@pytest.mark.processes
def test_version_and_bare_command() -> None:
    assert typed("--version", stdout=subprocess.PIPE).stdout == f"speedo {speedo.__version__}\n"
    bare = typed(stdout=subprocess.PIPE)
    assert (bare.returncode, bare.stdout) == (2, "")
    assert "speedo train SOLVER" in bare.stderr


# ---------------------------------------------------------------- one configuration, two ways

YAML = """\
solver: mine.prototxt
mode: hybrid
workers: 3
max-iter: 90
lr: 0.5
device: cpu
phases:
- {mode: sync, iterations: 10}
- {mode: easgd, iterations: 20, moving_rate: 0.25}
"""
OPTIONS = (
    "mine.prototxt --mode hybrid --workers 3 --max-iter 90 --lr 0.5 --device cpu "
    "--phase sync:10 --phase easgd:20,moving-rate=0.25"
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The configurations of the runs that `train` would have started."""
    from speedo.actors import launch as launcher

    seen: list[RunConfig] = []

    def train(config: RunConfig, watch: object) -> RunResult:
        seen.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr(launcher, "train", train)
    return seen


def test_a_yaml_file_says_the_same_as_options(asked: list[RunConfig], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(YAML)
    CliRunner().invoke(main, ["train", "--config", str(file)])
    CliRunner().invoke(main, ["train", *OPTIONS.split()])
    assert asked[0] == asked[1]
    assert (asked[0].workers, asked[0].device) == (3, "cpu")
    assert asked[0].phases[1].moving_rate == 0.25


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("train --port 7000 --own", "--own, --port: give --host ADDRESS, too"),
        ("train --host 127.0.0.1 --ray auto", "--ray: a Ray cluster starts the workers itself"),
        ("worker --master 127.0.0.1 --workers 0 --threads 2", "threads: with --workers 0 no worker uses it"),
    ],
)  # fmt: skip
def test_what_needs_workers_of_other_machines_says_so(typed: str, said: str) -> None:
    told = CliRunner().invoke(main, typed.split())
    assert told.exit_code == 2
    assert said in str(told.exception or "") + told.stderr


@pytest.mark.parametrize("command", ["master", "train --host 127.0.0.1"])
def test_train_with_a_host_is_a_master(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    from speedo.actors import launch as launcher

    seen: list[tuple[RunConfig, Path | None]] = []

    def serve(config: RunConfig, watch: object, token_file: Path | None) -> RunResult:
        seen.append((config, token_file))
        raise ConfigError("enough")

    monkeypatch.setattr(launcher, "serve_master", serve)
    CliRunner().invoke(main, [*command.split(), "--token-file", "secret", "--port", "7000"])
    assert [(one.host, one.port, file) for one, file in seen] == [
        ("127.0.0.1", 7000, Path("secret"))
    ]


def test_a_standby_has_its_masters_options_but_for_its_own_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from speedo.actors import standby

    seen: list[tuple[str, dict[str, object]]] = []

    def serve(address: str, watch: object, **options: object) -> None:
        seen.append((address, options))
        raise ConfigError("enough")

    monkeypatch.setattr(standby, "serve_standby", serve)
    words = [
        "master",
        "--standby",
        "10.0.0.5",
        "--run-dir",
        "here",
        "--port",
        "7000",
        "--timeout",
        "9",
    ]
    CliRunner().invoke(main, words)
    places = {"run_dir": Path("here"), "port": 7000, "timeout_s": 9.0, "token_file": None}
    assert seen == [("10.0.0.5:56126", places)]
    for wrong, said in (
        (["--workers", "2"], "--workers: with --standby the run is another master's"),
        (["--redis", "redis://10.0.0.9"], "--redis: with --standby"),
        (["solver.prototxt"], "SOLVER: with --standby"),
        (["--port", "0"], "port is 0"),
    ):
        told = CliRunner().invoke(main, ["master", "--standby", "10.0.0.5", *wrong])
        assert said in str(told.exception or "") + told.stderr
    told = CliRunner().invoke(main, ["master", "--standby", "10.0.0.5:x"])
    assert "--standby '10.0.0.5:x' is not HOST or HOST:PORT" in str(told.exception) + told.stderr
    assert len(seen) == 1


def test_a_server_is_a_host_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from speedo.actors.join import worker_command

    seen: list[tuple[object, ...]] = []

    def serve(address: str, count: int, watch: object, **options: object) -> None:
        seen.append((address, count, options))
        raise ConfigError("enough")

    monkeypatch.setattr(worker_command, "serve_worker", serve)
    for command in ("server", "worker --workers 0"):
        CliRunner().invoke(main, [*command.split(), "--master", "127.0.0.1", "--logs", "here"])
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][:2] == ("127.0.0.1:56126", 0)


def test_the_command_line_comes_before_the_file(asked: list[RunConfig], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(YAML)
    CliRunner().invoke(main, ["train", "--config", str(file), "--workers", "5"])
    assert (asked[0].workers, asked[0].max_iter) == (5, 90)


@pytest.mark.caffe
def test_the_solver_of_the_environment_is_taken_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    theirs = write_solver(tmp_path, net_text(), max_iter=33)
    (tmp_path / "mine").mkdir()
    mine = write_solver(tmp_path / "mine", net_text(), max_iter=44)
    monkeypatch.setenv("SPEEDO_SOLVER", str(theirs))
    assert prepare(RunConfig(), lambda text: None).spec.max_iter == 33
    assert prepare(RunConfig(solver=mine), lambda text: None).spec.max_iter == 44
    monkeypatch.setenv("SPEEDO_SOLVER", "gone.prototxt")
    with pytest.raises(ConfigError, match="SPEEDO_SOLVER names gone"):
        prepare(RunConfig(), lambda text: None)


# ---------------------------------------------------------------- data


def test_fashion_mnist_is_made_from_the_folder_named(tmp_path: Path) -> None:
    idx_folder(tmp_path / "source")
    result = CliRunner().invoke(
        main, ["data", "fashion-mnist", str(tmp_path / "out"), "--source", str(tmp_path / "source")]
    )
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 'out'}: " in result.stdout
    assert "30 records" in result.stdout
    assert result.stderr == ""
    assert list((tmp_path / "out").glob("*_lmdb"))


# ---------------------------------------------------------------- streams that nobody reads


@pytest.mark.processes
def test_a_page_piped_to_a_reader_that_has_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = typed("train", "--help", stdout=writing)
    os.close(writing)
    assert ended.stderr == ""


@pytest.mark.processes
@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(redirection: str) -> None:
    command = f'"{sys.executable}" -m speedo train nowhere.prototxt {redirection}'
    ended = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


@pytest.mark.processes
def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "w") as full:
        ended = typed("--help", stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == (
        "speedo: standard output cannot be written: No space left on device; make room or make it writable, and "
        "try again\n"
    )


@pytest.mark.caffe
@pytest.mark.redis
@pytest.mark.ray
def test_a_run_goes_on_when_its_reader_has_gone(tmp_path: Path) -> None:
    write_data(tmp_path)
    solver = write_solver(tmp_path, net_text(), max_iter=40)
    reading, writing = os.pipe()
    os.close(reading)
    run = tmp_path / "run"
    ended = typed("train", str(solver), "--run-dir", str(run), stdout=writing, stderr=writing)
    os.close(writing)
    assert ended.returncode == 0, (run / "train.log").read_text()
    assert (run / "model.caffemodel").exists()
    assert "iteration 40/40" in (run / "train.log").read_text()
