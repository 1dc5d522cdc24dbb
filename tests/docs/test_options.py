"""The tables of options in docs/ are what the code declares; an option that is declared once is everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import click
import pytest
import yaml
from click.testing import CliRunner

from speedo.cli.run_options import RunCommand, options_for
from speedo.errors import ConfigError
from speedo.run.config.option_table import rows, words_of
from speedo.run.config.run_config import WORKERS, RunConfig, make_config
from speedo.system.bounds import Option, Whole
from tests.support.option_tables import markdown, markdown_of_combinations, markdown_of_modes

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN = "<!-- options: written by `pytest tests/docs/test_options.py --rewrite-tables` -->\n"
END = "<!-- end of options -->\n"


@pytest.mark.parametrize(
    ("page", "begin", "table"),
    [
        ("options.md", BEGIN, markdown),
        ("options.md", BEGIN.replace("options:", "combinations:"), markdown_of_combinations),
        ("modes.md", BEGIN, markdown_of_modes),
    ],
)
def test_the_table_in_the_docs_is_current(
    page: str, begin: str, table: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    file = DOCS / page
    text = file.read_text(encoding="utf-8")
    before, rest = text.split(begin)
    _, after = rest.split(END, 1)
    written = f"\n{table()}\n".replace("\n\n\n", "\n\n")
    now = f"{before}{begin}{written}{END}{after}"
    if request.config.getoption("--rewrite-tables"):
        file.write_text(now, encoding="utf-8")
    else:
        assert text == now, "write it anew: pytest tests/docs/test_options.py --rewrite-tables"


def test_every_option_has_words_and_every_default_but_the_solvers_is_said() -> None:
    for row in rows():
        assert row.option.help.endswith((".", "1000,moving_rate=0.3")), row.name
        if row.default not in (None, False, ()):
            assert row.usual, row.name
            assert row.source, row.name


class Wider(RunConfig):
    """A run with one more option."""

    helpers: Annotated[
        int, Option("Helpers of each worker.", Whole(0, 9), source="a guess", group=WORKERS)
    ] = 3


def test_an_option_that_is_declared_once_is_in_help_docs_yaml_and_checks(tmp_path: Path) -> None:
    seen: dict[str, object] = {}

    @click.command(cls=RunCommand)
    @options_for(lambda row: True, Wider)
    def train(**options: object) -> None:
        seen.update(options)

    page = CliRunner().invoke(train, ["--help"], terminal_width=200).output
    assert "--helpers N" in page
    assert "Helpers of each worker.  [default: 3]" in page
    assert "| `--helpers N` | Helpers of each worker. | 0 to 9 | 3 | a guess |" in markdown(Wider)
    assert CliRunner().invoke(train, ["--helpers", "4"]).exit_code == 0
    assert seen["helpers"] == 4

    file = tmp_path / "run.yaml"
    file.write_text("helpers: 7\n")
    config = make_config({}, file=file, model=Wider)
    assert config.model_dump()["helpers"] == 7
    assert yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))["helpers"] == 7
    for value, problem in ((10, "helpers is 10: use 0 to 9"), ("x", "helpers is 'x'; use a whole number")):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            make_config({"helpers": value}, model=Wider)
        assert caught.value.problems == (problem,)


def test_options_as_words_are_read_as_the_same_options() -> None:
    """As a comparison and `speedo launch` hand them on."""
    given = {
        "mode": "partial", "catch_up": True, "local_steps": "1,10@500", "max_advance": 3, "final_test": False,
        "testers": 2, "compress_center": "bfloat16", "join_timeout": 5.0, "split_batch": False, "keep_best": True,
        "resources": "cpu=2,gpu=1", "placement": "pack", "ray": "10.0.0.5:6379", "restarts": 0, "master_restarts": 2,
    }  # fmt: skip
    words = words_of({**given, "lr": None, "phases": (), "redis_tls": False})

    @click.command(cls=RunCommand)
    @options_for(lambda row: True)
    def read(**options: object) -> None:
        raise AssertionError("only parsed")

    with read.make_context("read", words) as context:
        found = {name: value for name, value in context.params.items() if value not in (None, ())}
    assert found == {**found, **given}
    assert make_config(found) == make_config(given)
    own = words_of({"mode": "sync", "rule": "mine:HeavyBall", "heavy": 0.7})
    assert own == ["--mode", "sync", "--rule", "mine:HeavyBall,heavy=0.7"]
