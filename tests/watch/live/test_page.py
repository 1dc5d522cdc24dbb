"""The page in a browser: it follows a real training through deaths and a resume, and its buttons work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from selenium.webdriver.common.by import By
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from speedo.watch.control_socket import RUNTIME_VARIABLE, ControlServer
from tests.support.browser import Browser, chromium
from tests.support.commands import Commands, free_port, how_loaded, interrupt
from tests.support.processes import lines_of
from tests.support.sabotaged_net import write_problem
from tests.watch.live.test_history import result, status, write

WAIT_S = 120
DEATH_S = 5.0  # within which a death is shown, on a machine with nothing else to do


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with chromium(1200, 900) as made:
        yield made


@pytest.fixture
def browser(tab: Browser) -> Iterator[Browser]:
    """The tab of all tests, with nothing left of the one before."""
    yield tab
    tab.open("about:blank")  # or the page goes on asking for its server
    tab.scheme("light")
    tab.errors()


def served(speedo: Commands, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """The command, and the URL that it has printed."""
    process = speedo.start("watch", "--web", *arguments)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert "#token=" in url, process.communicate(timeout=120)
    return process, url


def cell(worker: int, name: str) -> str:
    """The expression for a cell of the workers' table."""
    place = f'tr[data-worker="{worker}"] td[data-name="{name}"]'
    return f"(document.querySelector('{place}') || {{textContent: ''}}).textContent"


def shown(name: str) -> str:
    return f"document.getElementById('{name}').textContent"


ITERATION = "Number((document.getElementById('progress').textContent.match(/[\\d,]+/) || ['0'])[0].replaceAll(',', ''))"


def scrape(port: int) -> dict[str, float]:
    """Prometheus' own parser on what the run answers: samples without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            one.name: one.value for family in families for one in family.samples if not one.labels
        }


def until_gone(process: subprocess.Popen[str], speedo: Commands, besides: set[int]) -> None:
    """Wait for all processes of a killed command."""
    process.wait(120)
    deadline = time.monotonic() + 120 * how_loaded()
    while any(one.pid not in besides for one in speedo.left()):
        assert time.monotonic() < deadline, lines_of(speedo.left())
        time.sleep(0.2)


def workers_of(speedo: Commands) -> list[dict[str, Any]]:
    out, errors = speedo.start("status", "--json").communicate(timeout=WAIT_S)
    assert out, errors
    (run,) = json.loads(out)["runs"]
    return list(run["workers"])


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.caffe
@pytest.mark.slow
def test_the_page_follows_a_training_through_a_death_a_resume_and_its_end(
    speedo: Commands, browser: Browser, tmp_path: Path
) -> None:
    port = free_port()
    train = speedo.start(
        "train", str(write_problem(tmp_path / "problem")), "--mode", "async", "--max-iter", "100000",
        "--test-interval", "20", "--checkpoint-interval", "1", "--run-dir", "run", "--tensorboard", "--caffe-log",
        "--metrics-port", str(port),
    )  # fmt: skip
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not metrics.exists():
        assert train.poll() is None, train.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    web, url = served(speedo, "run")
    browser.open(url)

    # It follows the training.
    browser.wait_for(f"{ITERATION} > 30 && {shown('state')} === 'training'", WAIT_S)
    browser.wait_for("document.querySelectorAll('#test-chart .dot').length > 1", WAIT_S)
    before = browser.ask(f"return {ITERATION}")
    browser.wait_for(f"{ITERATION} > {before}", WAIT_S)
    # The token is not left where eyes and logs are
    assert browser.ask("return location.hash") == ""
    assert browser.ask("return document.getElementById('controls').hidden") is False
    drawn = {one.name: one.marks for one in browser.drawings()}
    assert {name for name, marks in drawn.items() if marks >= 4} == {
        "loss-chart", "test-chart", "speed-chart", "stale-chart"
    }  # fmt: skip
    assert scrape(port)["speedo_iteration"] >= before - 1

    # A killed worker is there with its cause, and comes back.
    loaded = how_loaded()
    victim = workers_of(speedo)[1]
    os.kill(victim["process"], signal.SIGKILL)
    killed = time.monotonic()
    browser.wait_for(f"{cell(1, 'Last death')}.includes('SIGKILL')", WAIT_S)
    took = time.monotonic() - killed
    assert took <= DEATH_S * max(loaded, how_loaded()), f"shown after {took:.1f} s"
    print(f"a killed worker was shown with its cause after {took:.1f} s, load {loaded:.1f}")
    browser.screenshot(tmp_path / "death.png")
    browser.wait_for(f"{cell(1, 'State')} === 'training'", WAIT_S)
    assert "SIGKILL" in browser.ask(f"return {cell(1, 'Last death')}")

    # The master dies; the same page shows it, and continues its successor.
    at = browser.ask(f"return {ITERATION}")
    deadline = time.monotonic() + 120 * how_loaded()
    while '"event":"checkpoint"' not in metrics.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    train.kill()
    browser.wait_for(f"{shown('state')} === 'no master'", WAIT_S)
    assert "--resume" in browser.ask(f"return {shown('reason')}")
    assert browser.ask("return document.getElementById('controls').hidden") is True
    until_gone(train, speedo, {web.pid})
    resumed = speedo.start("train", "--resume", "run")
    browser.wait_for(
        f"{shown('state')} === 'training' && {shown('place')}.includes('resumed 1 time')", WAIT_S
    )
    browser.wait_for(f"{ITERATION} > {at} + 10", WAIT_S)
    assert scrape(port)["speedo_iteration"] > at

    for scheme in ("light", "dark"):
        browser.scheme(scheme)  # type: ignore[arg-type]
        browser.screenshot(tmp_path / f"{scheme}.png")
    grounds = []
    for scheme in ("light", "dark"):
        browser.scheme(scheme)  # type: ignore[arg-type]
        grounds.append(browser.ask("return getComputedStyle(document.body).backgroundColor"))
    assert len(set(grounds)) == 2
    browser.size(390, 800, phone=True)
    time.sleep(0.3)
    assert browser.overflow() == 0
    browser.screenshot(tmp_path / "phone.png")
    browser.size(1200)

    # Its buttons, after a question.
    browser.driver.find_element(By.ID, "stop").click()
    assert "Stop the run?" in browser.driver.find_element(By.ID, "sure").text
    browser.driver.find_element(By.CSS_SELECTOR, "#sure button[value=no]").click()
    time.sleep(0.5)
    assert resumed.poll() is None
    browser.driver.find_element(By.ID, "stop").click()
    browser.driver.find_element(By.ID, "yes").click()
    browser.wait_for(f"{shown('state')} === 'finished'", WAIT_S)
    assert "speedo stop" in browser.ask(f"return {shown('reason')}")
    assert browser.errors() == []
    _, errors = resumed.communicate(timeout=WAIT_S)
    assert resumed.returncode == 3, errors
    interrupt(web)
    _, errors = web.communicate(timeout=120)
    assert web.returncode == 130
    assert url.split("token=")[1] not in errors + (tmp_path / "run" / "train.log").read_text()

    # And what others read of the same run, over the resume.
    board = EventAccumulator(str(tmp_path / "run"), size_guidance={"scalars": 0})
    board.Reload()
    steps = [one.step for one in board.Scalars("train/loss")]
    assert steps == sorted(set(steps))
    assert steps[-1] > at
    log = (tmp_path / "run" / "caffe.log").read_text()
    assert log.count("Solving") == 2
    assert "Restoring previous solver status" in log


@pytest.mark.processes
def test_a_connection_that_is_lost_is_shown_and_taken_up_again(
    speedo: Commands, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "runtime"))
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder, *(result(0, one, one / 10) for one in range(1, 101)))
    asked: list[Any] = []

    def answer(question: Any) -> Any:
        asked.append(question)
        return {**status(folder, iteration=100), "said": "training with 3 workers from now on"}

    with ControlServer("1a2b", answer):
        port = free_port()
        web, url = served(speedo, "run", "--port", str(port))
        browser.open(url)
        browser.wait_for(f"{ITERATION} === 100", WAIT_S)
        for _ in range(2):
            browser.driver.find_element(By.ID, "more").click()
        browser.driver.find_element(By.ID, "set").click()
        browser.wait_for(f"{shown('said')}.includes('3 workers')", WAIT_S)
        assert {"ask": "scale", "workers": 3} in asked
        assert browser.errors() == []
        browser.driver.refresh()  # the tab keeps the token
        browser.wait_for("document.getElementById('controls').hidden === false", WAIT_S)

        web.kill()
        web.wait(120)
        browser.wait_for(f"{shown('connection')}.includes('Connection lost')", WAIT_S)
        assert browser.ask(f"return {ITERATION}") == 100  # what there was is still shown
        write(folder, *(result(0, one, one / 10) for one in range(101, 111)))
        again, _ = served(speedo, "run", "--port", str(port))
        browser.wait_for("document.getElementById('connection').hidden", WAIT_S)
        browser.wait_for(
            f"{shown('stale')} === '1' && document.querySelector('#loss-chart .curve')", WAIT_S
        )
        # Its token is another, which this tab has not.
        browser.wait_for("document.getElementById('controls').hidden", WAIT_S)
        interrupt(again)
        again.wait(120)
    browser.errors()  # the browser tells of the connections that were refused meanwhile


@pytest.mark.processes
def test_what_a_run_says_is_text_and_no_markup(
    speedo: Commands, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "runtime"))
    folder = tmp_path / "<img src=x onerror=document.title='owned'>"
    folder.mkdir()
    evil = "<script>document.title = 'owned'</script><b>bold</b>"
    write(folder, {"time": 0.1, "event": "joined", "worker": 0, "host": evil},
          {"time": 0.2, "event": "left", "worker": 0, "cause": evil},
          {"time": 0.3, "event": "test", "version": 1, "iteration": 1, "metrics": {evil: 0.5}})  # fmt: skip
    web, url = served(speedo, str(folder))
    browser.open(url)
    browser.wait_for(f"{shown('name')} === {json.dumps(folder.name)}", WAIT_S)
    assert evil in browser.ask(f"return {cell(0, 'Last death')}")
    assert browser.ask("return document.querySelectorAll('main b, table b, img').length") == 0
    assert "owned" not in browser.driver.title.replace(folder.name, "")
    assert browser.errors() == []
    interrupt(web)
    web.wait(120)
