"""The profile of Hypothesis, what is left out, timeouts, the report of the fault matrix, Ctrl-C, problems."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from speedo.engines.caffe_import import prepare_environment
from tests.faults.rows import (
    EVERY,
    Finding,
    Findings,
    Tried,
    engine_of,
    faults_of,
    is_wanted,
    mode_of,
    write_down,
)
from tests.support import left_behind
from tests.support.commands import how_loaded
from tests.support.forked.commands import native_deaths, share_a_server
from tests.support.quick import no_process_started, tried, watch_starts

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
    max_examples=tried(100),
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("speedo")


def pytest_configure(config: pytest.Config) -> None:
    left_behind.start()
    # Xdist's processes share that of the one that starts them
    if not hasattr(config, "workerinput"):
        share_a_server()
    watch_starts()


@pytest.fixture(autouse=True)
def _script_of_its_own() -> Iterator[None]:
    """A script joins one run; all tests that join in this process are one script each."""
    yield
    if (joined := sys.modules.get("speedo.run.script.joined_run")) is not None:
        joined._joined = False  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    no_process_started()
    yield
    no_process_started()


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
def forked_python(monkeypatch: pytest.MonkeyPatch) -> str:
    """What the product starts by Python from the process of the test is forked; the program that stands for Python."""
    from tests.support.forked.commands import python

    monkeypatch.setattr(sys, "executable", python())
    return python()


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's sockets; it does not exist yet."""
    folder = tmp_path / "runtime"
    monkeypatch.setenv("SPEEDO_RUNTIME_DIR", str(folder))
    return folder


# By marker: what its tests need, and the reason without it.
NEEDED = {
    "torch": ("torch", "PyTorch is not installed"),
    "libraries": ("lightning", "Lightning, transformers, Accelerate and skorch are not installed"),
}
MOST_LOADED = 6.0  # times the timeout of a test, on however busy a machine


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unwanted = [
        item
        for item in items
        if not is_wanted(item)
        or (os.environ.get(EVERY) != "all" and item.get_closest_marker("matrix") is not None)
    ]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        left_out = set(unwanted)
        items[:] = [item for item in items if item not in left_out]
    longest = float(config.getoption("timeout") or config.getini("timeout"))
    factor = min(how_loaded(), MOST_LOADED)
    for item in items:
        own = item.get_closest_marker("timeout")
        scaled = factor * (longest if own is None else own.args[0])
        item.add_marker(pytest.mark.timeout(scaled), append=False)
    for marker, (module, reason) in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            for item in items:
                if item.get_closest_marker(marker) is not None:
                    item.add_marker(pytest.mark.skip(reason=reason))


FINDINGS = pytest.StashKey[Findings]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mark = item.get_closest_marker("faults")
    if mark is not None and (report.when == "call" or report.failed):
        faults = faults_of(item)
        findings = item.stash.get(FINDINGS, Findings(faults))
        for fault, number in faults.items():
            found = findings.found[fault]
            outcome = report.outcome
            if outcome == "failed" and report.when == "call":
                outcome = findings.outcome(fault)
            note = found.note if outcome == "passed" else f"{report.when}: {_last_line(report)}"
            engine = ", PyTorch engine" if engine_of(item) == "torch" else ""
            write_down(Tried(number, fault + engine, mode_of(item), outcome, found.seconds, note))
    return report


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).splitlines()[0]


@pytest.fixture
def findings(request: pytest.FixtureRequest) -> Findings:
    made = Findings(faults_of(request.node))
    request.node.stash[FINDINGS] = made
    return made


@pytest.fixture
def finding(findings: Findings) -> Finding:
    """Of a test that tries one fault."""
    (only,) = findings.found.values()
    return only


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after the list of all that was skipped
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> Generator[None, None, None]:
    yield
    if exitstatus and not hasattr(config, "workerinput") and (deaths := native_deaths()):
        terminalreporter.section("native deaths of forks, those included that a test wanted")
        terminalreporter.write_line(deaths)
    skipped = terminalreporter.stats.get("skipped", [])
    for _, reason in NEEDED.values():
        left_out = [one for one in skipped if reason in str(one.longrepr)]
        if left_out:
            terminalreporter.write_line(
                f"{len(left_out)} tests were left out: {reason}; `TORCH=1 make test` installs what they need"
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-traces",
        action="store_true",
        help="write tests/study/simulation/golden anew from what happens now; read the difference before you commit it",
    )
    parser.addoption(
        "--rewrite-tables",
        action="store_true",
        help="write the tables of options into docs/ from their declarations",
    )
