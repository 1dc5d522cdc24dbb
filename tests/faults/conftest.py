from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.faults.rows import Finding, Tried, fault_of, is_wanted, mode_of, write_down
from tests.support.commands import Commands, commands
from tests.support.sabotaged_net import environment_of_torch, write_problem

FINDING = pytest.StashKey[Finding]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unwanted = [item for item in items if not is_wanted(item)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in set(unwanted)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mark = item.get_closest_marker("faults")
    if mark is not None and (report.when == "call" or report.failed):
        found = item.stash.get(FINDING, Finding())
        note = found.note if report.passed else f"{report.when}: {_last_line(report)}"
        number, fault = fault_of(item)
        write_down(Tried(number, fault, mode_of(item), report.outcome, found.seconds, note))
    return report


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).splitlines()[0]


@pytest.fixture
def finding(request: pytest.FixtureRequest) -> Finding:
    request.node.stash[FINDING] = Finding()
    return request.node.stash[FINDING]


@pytest.fixture
def engine() -> str:
    """The engine of the commands; `row` says with which others a row is tried."""
    return "caffe"


@pytest.fixture
def problem(tmp_path: Path, engine: str) -> Path:
    """As `problem` elsewhere, for the engine."""
    return write_problem(tmp_path / "problem", engine=engine)


@pytest.fixture
def speedo(tmp_path: Path, engine: str) -> Iterator[Commands]:
    environment = environment_of_torch(tmp_path / "problem") if engine == "torch" else None
    with commands(tmp_path, environment) as made:
        yield made
