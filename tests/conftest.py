"""The profile of Hypothesis, what is left out without PyTorch, Ctrl-C for what is started, problems, golden traces."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from speedo.engines.caffe_import import prepare_environment
from tests.support import left_behind

if TYPE_CHECKING:
    from tests.support.commands import Commands

# Before any BLAS is loaded: one thread, as in a worker, so that sums have one order.
prepare_environment(1)

# A test starts hundreds of processes of ours; where this is set each would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what goes to the background with Ctrl-C ignored, and all its children would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every machine; times vary there too much for deadlines.
settings.register_profile(
    "speedo",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("speedo")


def pytest_configure() -> None:
    left_behind.start()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    left_behind.remove_at_the_end(factory.getbasetemp())
    left_behind.have_own_temporary_folder()


def pytest_unconfigure() -> None:
    left_behind.all_is_well()


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """A small net's solver with its data, for runs that go on until a test has seen enough: its workers mostly rest.

    No tester is started.
    """
    from tests.support.sabotaged_net import write_problem  # which loads a BLAS

    return write_problem(tmp_path / "problem", tested=False)


@pytest.fixture
def tested_problem(tmp_path: Path) -> Path:
    """The same with a test net."""
    from tests.support.sabotaged_net import write_problem

    return write_problem(tmp_path / "problem")


@pytest.fixture
def speedo(tmp_path: Path) -> Iterator[Commands]:
    """The real commands, started in the test's own folder; nothing of them is left behind."""
    from tests.support.commands import commands

    with commands(tmp_path) as made:
        yield made


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's sockets; it does not exist yet."""
    folder = tmp_path / "runtime"
    monkeypatch.setenv("SPEEDO_RUNTIME_DIR", str(folder))
    return folder


WITHOUT_TORCH = "PyTorch is not installed"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SPEEDO_FAULTS") != "all":
        more = [item for item in items if item.get_closest_marker("matrix") is not None]
        config.hook.pytest_deselected(items=more)
        items[:] = [item for item in items if item not in set(more)]
    if importlib.util.find_spec("torch") is None:
        for item in items:
            if item.get_closest_marker("torch") is not None:
                item.add_marker(pytest.mark.skip(reason=WITHOUT_TORCH))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after the list of all that was skipped
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    left_out = [one for one in skipped if WITHOUT_TORCH in str(one.longrepr)]
    if left_out:
        terminalreporter.write_line(
            f"{len(left_out)} tests of the engine on PyTorch were left out: {WITHOUT_TORCH}; "
            "`TORCH=1 make test` installs it first"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-traces",
        action="store_true",
        help="write tests/simulation/golden anew from what happens now; read the difference before you commit it",
    )
    parser.addoption(
        "--rewrite-tables",
        action="store_true",
        help="write the tables of options into docs/ from their declarations",
    )
