"""What the config.yaml of a former run may decide, when a stranger may have written it."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import yaml

from speedo.data.remote.fetch import RECORD, now_ours
from speedo.errors import ConfigError
from speedo.run.config.former_run import PLACES, options_of_run
from speedo.run.config.run_config import RunConfig, make_config
from speedo.study.scoring.models import options_of
from tests.support.fuzz import COUNT, randoms, value

EVIL = {
    "solver": "/tmp/theirs/solver.prototxt",
    "python_layers": "theirs",
    "ray": "192.0.2.1:6379",
    "redis": "redis://192.0.2.1",
    "host": "0.0.0.0",
    "data_root": "/home",
    "copy_to": "s3://theirs/run",
    "caffe_log": "/home/me/.bashrc",
}


def run_at(folder: Path, **options: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"workers": 3, "mode": "async", **options}))
    return folder


def fetched(run: Path) -> None:
    (run / RECORD).write_text("[]")


def writable(run: Path) -> None:
    (run / "config.yaml").chmod(0o666)


def foreign(run: Path) -> None:
    os.chown(run / "config.yaml", 12345, -1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (fetched, "the run was fetched from a store"),
        (writable, "every user of this machine may write the file"),
        pytest.param(
            foreign,
            "the file belongs to another user",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away"),
        ),
    ],
)
def test_code_and_places_of_a_strangers_run_are_asked_for_again(
    make: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    run = run_at(tmp_path / "run", **EVIL)
    make(run)
    with pytest.raises(ConfigError) as told:
        make_config({"resume": run})
    file = run / "config.yaml"
    assert str(told.value).splitlines() == [
        f"{name} is {value!r} in {file}, and is not taken from there: {why}; give {PLACES[name]} again, or "
        f"read the file and give --config {file}"
        for name, value in yaml.safe_load(file.read_text()).items()
        if name in PLACES
    ]
    mine = {"solver": "mine.prototxt", "python_layers": "mine", "ray": "auto", "redis": "redis://h",
            "host": "127.0.0.1", "data_root": "d", "copy_to": "s3://mine/run", "caffe_log": "auto"}  # fmt: skip
    config = make_config({"resume": run, **mine})
    assert (config.workers, config.mode, config.python_layers) == (3, "async", "mine")
    # Who has read the file may name it.
    assert make_config({"resume": run}, file=file).python_layers == "theirs"


def test_ones_own_run_goes_on_with_all_its_options(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", **EVIL)
    assert make_config({"resume": run}).ray == EVIL["ray"]
    fetched(run)
    now_ours(run)
    assert make_config({"resume": run}).ray == EVIL["ray"]


def test_what_has_its_usual_value_is_not_asked_for(tmp_path: Path) -> None:
    usual = {"host": "127.0.0.1", "caffe_log": "auto"}
    run = run_at(tmp_path / "run", **usual, weights="/their.caffemodel", take_over=True)
    fetched(run)
    config = make_config({"resume": run})
    assert (config.weights, config.take_over, config.workers) == (None, False, 3)


def test_numbers_of_a_stranger_are_checked_as_always(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", workers=10**9)
    fetched(run)
    with pytest.raises(ConfigError, match="workers is 1000000000"):
        make_config({"resume": run})


def test_a_strangers_model_is_scored_only_with_ones_own_solver(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", solver="/tmp/theirs/solver.prototxt", python_layers="theirs")
    fetched(run)
    with pytest.raises(ConfigError, match="name SOLVER, and nothing is taken from there"):
        options_of(run)


@pytest.mark.slow
def test_no_configuration_of_a_stranger_names_a_place_or_ends_in_an_exception(
    tmp_path: Path,
) -> None:
    run = run_at(tmp_path / "run")
    fetched(run)
    names = [*RunConfig.model_fields, "unknown"]
    taken = 0
    for chance in islice(randoms(), COUNT // 4):
        options = {chance.choice(names): value(chance) for _ in range(chance.randrange(5))}
        file = run / "config.yaml"
        file.write_text(yaml.safe_dump(options), errors="surrogatepass")
        try:
            read = options_of_run(file)
            config = make_config({"resume": run})
        except ConfigError:
            continue
        taken += 1
        assert not {*read} & {*PLACES}
        assert (config.solver, config.python_layers, config.ray, config.redis) == (None,) * 4
        assert (config.data_root, config.copy_to, config.weights) == (None,) * 3
        assert config.host == "127.0.0.1"
    assert taken
