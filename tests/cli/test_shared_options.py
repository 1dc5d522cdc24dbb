"""Options of a run that other commands take have the words and the values of the table of options."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from speedo.cli.compare import compare
from speedo.cli.doctor import doctor
from speedo.cli.join import worker
from speedo.cli.main import main
from speedo.cli.plan import plan
from speedo.engines.solver import SolverSpec
from speedo.errors import ConfigError, DataError
from speedo.run.config.option_table import rows
from speedo.run.prepare import chosen_solver
from tests.support.nets import net_text, write_data, write_solver


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (doctor, {"data_root", "redis", "run_dir", "host", "device", "micro_batch", "ignore_unknown"}),
        (plan, {"compress", "compress_center", "overlap", "split_batch", "data_root", "device", "ignore_unknown"}),
        (compare, {"batch", "data_root", "ignore_unknown"}),
        (worker, {"data_root"}),
    ],
)  # fmt: skip
def test_a_shared_option_is_that_of_the_run(command: click.Command, names: set[str]) -> None:
    table = {row.name: row.help for row in rows()}
    options = [one for one in command.params if isinstance(one, click.Option)]
    found = {str(one.name): one.help for one in options if one.name in names}
    found |= {
        part.name: part.help
        for one in options
        for part in getattr(one, "parts", ())
        if part.name in names
    }
    assert found == {name: table[name] for name in names}


def test_json_and_the_run_are_the_same_in_all_commands() -> None:
    options = [one for name in main.commands for one in main.commands[name].params]
    assert (
        len(
            {one.help for one in options if one.name == "as_json" and isinstance(one, click.Option)}
        )
        == 1
    )
    assert {
        one.make_metavar(click.Context(main))
        for one in options
        if one.name == "run" and isinstance(one, click.Argument)
    } == {"[RUN]"}


@pytest.mark.parametrize(
    "command", ["topology node1:2 --threads 2", "template systemd worker --address 10.0.0.5"]
)
def test_what_is_printed_can_be_written_to_a_file(tmp_path: Path, command: str) -> None:
    file = tmp_path / "written"
    printed = CliRunner().invoke(main, command.split())
    written = CliRunner().invoke(main, [*command.split(), "-o", str(file)])
    assert (written.exit_code, written.output) == (0, f"{file}\n")
    assert file.read_text() == printed.output
    refused = CliRunner().invoke(main, [*command.split(), "-o", str(tmp_path / "no" / "folder")])
    assert refused.exit_code == 2
    assert "folder cannot be written (No such file or directory); give another" in refused.stderr


def test_a_solver_of_the_environment_that_is_no_file_is_refused_only_where_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEEDO_SOLVER", str(tmp_path / "nowhere.prototxt"))
    with pytest.raises(ConfigError, match=r"nowhere\.prototxt, which is not a file"):
        chosen_solver(None)
    assert chosen_solver(tmp_path / "mine.prototxt") == tmp_path / "mine.prototxt"


@pytest.mark.caffe
@pytest.mark.parametrize("command", ["plan", "compare --dry-run"])
def test_fields_that_no_caffe_has_are_left_out_of_a_study_if_asked(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(spec: SolverSpec, *_: object) -> None:
        raise DataError(f"measured without {len(spec.left_out)} field")

    monkeypatch.setattr("speedo.study.planning.calibrate_by_measuring.measure", measure)
    write_data(tmp_path)
    solver = str(write_solver(tmp_path, net_text() + 'engine_of_ours: "fast"\n'))
    words = [*command.split(), solver, "--workers", "1"]
    refused = CliRunner().invoke(main, words).output
    assert "has no field 'engine_of_ours'" in refused
    assert "measured" not in refused
    told = CliRunner().invoke(main, [*words, "--ignore-unknown"]).output
    assert "left out: " in told
    assert "engine_of_ours" in told
    assert "measured without 1 field" in told
