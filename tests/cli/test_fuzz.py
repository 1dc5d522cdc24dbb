"""Every number and every path that the commands take, from what a careless or hostile user might give.

The commands run in this process, as far as their last step that is cheap: `train` and `master` until the solver is
read and checked and the run directory made, `worker` until it looks for its master, `plan` until it measures. What
they do with the disk is real. An option that is added is fuzzed without a word here.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedo.actors import launch as launcher
from speedo.actors.join import worker_command as membership
from speedo.cli.main import main
from speedo.errors import SpeedoError
from speedo.study.doctor.base import ok
from speedo.study.planning import predict as prediction
from tests.data.makers import idx_folder
from tests.study.planning.test_from_run import write_run
from tests.study.planning.times import calibration
from tests.support.nets import net_text, write_data, write_solver

# A hang is what some of these could cause: then it shall not take the suite's five minutes.
pytestmark = [pytest.mark.caffe, pytest.mark.timeout(120)]
EXAMPLES = 500
TAKEN = 99  # the status of a command that took all that it was given, and was stopped there

NUMBERS = (
    "0", "-0", "-1", "1", "2", "3", "1e3", "0.5", "-0.0", "1e308", "1e-320", "1e999", "nan", "inf", "-inf",
    "2147483647", "2147483648", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "9" * 40, "9" * 5000, "0x10", "1_000", " 7", "", "²", "٣", "one", "1,2", "1..3",
)  # fmt: skip
WORDS = (
    "", "a", "\n", "é", "\udcff", "x" * 5000, "::1", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:²", "[::1]:7", "a..b",
    "x" * 70, "1.2.3.4.5", "topk:nan", "sparse:-1", "topk:" + "9" * 400, "int8", "sync:1", "sync:²", "sync:1,lr=1",
    "easgd:3,moving_rate=nan", "easgd:3,moving_rate=", "sync:" + "9" * 5000, "redis://", "redis://[", "redis://a:99999",
    "redis://127.0.0.1:1/²", "unix://", "10gbit", "1e9gbit", "9" * 400 + "gbit", "1ms", "9" * 400 + "s", "1x1",
    "²x²", "1x" + "9" * 5000, "../x", "a/b", "..", "1", "1..2", "1,2",
)  # fmt: skip


class Enough(SpeedoError):
    """The command has taken everything."""

    exit_code = TAKEN


def stop_here(*_: Any, **__: Any) -> NoReturn:
    raise Enough("enough")


@dataclass(frozen=True)
class Farm:
    """Places to name: `good` ones of every kind, bad ones, and `new`, which is not there."""

    folder: Path
    good: dict[str, str]
    bad: tuple[str, ...]
    new: Path

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("the farm")  # to Hypothesis; its many names would hide the example

    def paths(self) -> list[str]:
        return [*self.good.values(), *self.bad, str(self.new), str(self.new / "deeper" / "still")]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("farm")
    write_data(folder)
    solver = write_solver(folder, net_text(train=str(folder / "train"), test=str(folder / "test")))
    (folder / "options.yaml").write_text(f"solver: {solver}\nworkers: 1\n")
    (folder / "token").write_text("0123456789abcdef0123456789abcdef\n")
    (folder / "token").chmod(0o600)
    (folder / "calibration.json").write_text(calibration().model_dump_json())
    (folder / "list.txt").write_text("nowhere.png 0\n")
    idx_folder(folder / "source")
    run = write_run(folder / "run")
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "unreadable").touch(mode=0)
    (folder / "junk").write_bytes(bytes(range(256)) * 40)
    (folder / "new\nline").write_text("workers: 1\n")
    foreign = os.fsdecode(os.fsencode(folder) + b"/\xff")
    os.mkdir(foreign)
    shutil.copy(solver, foreign)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    bad = [
        str(folder / name)
        for name in (
            "empty", "folder", "pipe", "loop", "loop/inside", "unreadable", "junk", "new\nline", "socket", "missing",
            "empty/inside", "x" * 300, "/".join(["x" * 200] * 30), "\udcff", "é",
        )
    ]  # fmt: skip
    good = {
        "solver": str(solver),
        "options": str(folder / "options.yaml"),
        "token": str(folder / "token"),
        "calibration": str(folder / "calibration.json"),
        "list": str(folder / "list.txt"),
        "source": str(folder / "source"),
        "run": str(run),
    }
    odd = (
        "",
        ".",
        "/",
        "/dev/null",
        "/dev/full",
        foreign,
        f"{foreign}/solver.prototxt",
        "~nobody-of-that-name/x",
    )
    yield Farm(folder, good, (*bad, *odd), folder / "new")
    listener.close()


@pytest.fixture
def at_the_farm(farm: Farm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Farm:
    """The commands stop before what takes seconds, and find nothing of this user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPEEDO_SOLVER", farm.good["solver"])
    monkeypatch.setenv("SPEEDO_RUNTIME_DIR", str(tmp_path / "sockets"))
    monkeypatch.setenv("SPEEDO_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SPEEDO_TOKEN_FILE", farm.good["token"])
    monkeypatch.setenv("SPEEDO_REDIS_PASSWORD", "")
    monkeypatch.setattr(launcher, "owned", stop_here)  # the first step after `prepare`
    monkeypatch.setattr("speedo.actors.fleet.connection.connected", stop_here)
    monkeypatch.setattr("speedo.launch.launcher.Launcher.run", stop_here)
    monkeypatch.setattr("speedo.run.prepare.check_writable", stop_here)
    monkeypatch.setattr("speedo.data.remote.fetch.open_remote", stop_here)
    monkeypatch.setattr(membership, "wait_for_master", stop_here)
    monkeypatch.setattr("speedo.actors.standby.wait_for_master", stop_here)
    monkeypatch.setattr(membership.time, "sleep", stop_here)  # it waits for its token, as it should
    monkeypatch.setattr(prediction, "predict_all", stop_here)
    monkeypatch.setattr("speedo.study.planning.calibrate_by_measuring.measure", stop_here)
    monkeypatch.setattr("speedo.study.comparison.compare.make", stop_here)
    monkeypatch.setattr(
        "speedo.study.doctor.examination.pycaffe", lambda: ok("pycaffe", "not tried")
    )
    monkeypatch.setattr(
        "speedo.study.doctor.examination.examine_master", lambda request, secret: ([], {})
    )
    monkeypatch.setattr("speedo.study.doctor.solver.check_in_subprocess", stop_here)
    return farm


def commands() -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command with its words; the groups themselves are left out."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in main.commands.items():
        if isinstance(command, click.Group):
            found += [((name, inner), one) for inner, one in command.commands.items()]
        elif not command.hidden:
            found.append(((name,), command))
    return found


COMMANDS = commands()
ANY_PATH = st.integers(0, 10**6)  # which of the farm's, whose names differ from run to run


@st.composite
def typed(draw: st.DrawFn) -> list[str | int]:
    """Words of a command line; a number stands for one of the farm's paths."""
    words, command = draw(st.sampled_from(COMMANDS))
    line: list[str | int] = [*words]
    options = [one for one in command.params if isinstance(one, click.Option)]
    some = st.lists(st.sampled_from(options), max_size=4, unique_by=id)
    chosen = draw(some) if options else []
    needed = [
        one for one in options if one.required or (one.name == "source" and words[0] == "data")
    ]
    for option in [*needed, *(one for one in chosen if one not in needed)]:
        name = draw(st.sampled_from(option.opts + option.secondary_opts))
        line.append(name)
        if not option.is_flag:
            line.append(draw(value_of(option)))
    for argument in command.params:
        if isinstance(argument, click.Argument) and (argument.required or draw(st.booleans())):
            line.append("--")
            line.append(draw(value_of(argument)))
    # What stands after `--` is no option, and one `--` is enough.
    marks = [place for place, word in enumerate(line) if word == "--"]
    return [word for place, word in enumerate(line) if word != "--" or place == marks[0]]


def value_of(parameter: click.Parameter) -> st.SearchStrategy[str | int]:
    kind = parameter.type
    if isinstance(kind, click.Path):
        return ANY_PATH
    numbers = st.sampled_from(NUMBERS) | st.integers().map(str) | st.floats().map(str)
    if isinstance(kind, click.Choice):
        return st.sampled_from([*kind.choices, *kind.choices, "x"])
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return numbers
    return st.sampled_from(WORDS) | numbers


@pytest.mark.timeout(400)  # some of the lines start processes, which takes long on a busy machine
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(line=typed())
def test_no_number_and_no_path_ends_in_a_traceback_or_in_false_success(
    at_the_farm: Farm, line: list[str | int]
) -> None:
    farm = at_the_farm
    paths = farm.paths()
    words = [word if isinstance(word, str) else paths[word % len(paths)] for word in line]
    shutil.rmtree(farm.new, ignore_errors=True)
    before = set(os.listdir(farm.folder))
    ended = CliRunner().invoke(main, words)
    said = ended.output + ended.stderr
    assert "Traceback" not in said
    assert "unexpected error" not in said, said
    assert ended.exit_code in (0, 1, 2, TAKEN), said
    if ended.exit_code in (1, 2) and words[0] != "doctor":
        assert "speedo: " in ended.stderr or "--json" in words
    if ended.exit_code == 0:
        ends = ("data", "report", "doctor", "topology", "template")
        assert words[0] in ends or "--dry-run" in words, said
        assert ended.stdout
    for name in set(os.listdir(farm.folder)) - before:  # what a command made of a name of the farm
        place = farm.folder / name
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()


def test_the_fuzz_reaches_every_command_and_every_kind_of_value() -> None:
    kinds = {type(parameter.type) for _, command in COMMANDS for parameter in command.params}
    told = {name for name, command in main.commands.items() if not command.hidden}
    assert {words[0] for words, _ in COMMANDS} == told
    assert kinds >= {click.Path, click.IntRange, click.FloatRange, click.Choice}
