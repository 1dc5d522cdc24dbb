"""The page of a report in a browser, from the file system: whole, quiet, drawn, in light and dark, on a phone."""

from __future__ import annotations

import csv
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from speedo.cli.main import main
from tests.support.browser import Browser, chromium

# Where a person wants to look at the pictures afterwards.
SHOTS = os.environ.get("SPEEDO_SCREENSHOTS")


@pytest.fixture(scope="module")
def page(run_folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    done = CliRunner().invoke(main, ["report", *map(str, run_folders), "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert done.output.split() == [
        str(target.with_suffix(end)) for end in (".html", ".png", ".csv")
    ]
    return target


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Browser]:
    with chromium() as browser:
        browser.open(page)
        yield browser


@pytest.mark.processes
def test_the_page_says_nothing_on_the_console_and_draws_every_chart(browser: Browser) -> None:
    assert browser.errors() == []
    charts = {one.name: one for one in browser.drawings() if one.name}
    expected = {
        "speedup", "epoch-factor", "throughput-factor", "loss-epochs-0", "loss-seconds-0", "accuracy-epochs-0",
        "accuracy-seconds-0", "rates", "turns", "staleness-1", "staleness-2", "lives-0", "lives-1",
    }  # fmt: skip
    assert set(charts) == expected
    for chart in charts.values():
        assert min(chart.width, chart.height) > 80, chart
        assert chart.marks >= 2, chart
    # Three lines each, of which each has a path with a length.
    for name in ("loss-epochs-0", "loss-seconds-0", "accuracy-epochs-0", "accuracy-seconds-0"):
        lengths = browser.ask(
            "return [...document.querySelectorAll('#' + arguments[0] + ' path.stroke')].map((p) => p.getTotalLength())",
            name,
        )
        assert len(lengths) == 3
        assert min(lengths) > 50


@pytest.mark.processes
def test_light_and_dark_differ_and_the_text_can_be_read_in_both(
    browser: Browser, tmp_path: Path
) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        shot = browser.screenshot(Path(SHOTS or tmp_path) / f"report-{scheme}.png")
        assert shot.read_bytes().startswith(b"\x89PNG")
        paper, ink, tick = browser.ask(
            "const of = (where, what) => getComputedStyle(document.querySelector(where))[what];"
            "return [of('body', 'backgroundColor'), of('h1', 'color'), of('svg text.tick', 'fill')]"
        )
        colours[scheme] = paper
        assert contrast(ink, paper) > 10
        assert contrast(tick, paper) > 4.5
    assert colours["light"] != colours["dark"]


@pytest.mark.processes
def test_on_a_phone_nothing_scrolls_sideways(browser: Browser, tmp_path: Path) -> None:
    browser.size(390, 844, phone=True)
    try:
        browser.screenshot(Path(SHOTS or tmp_path) / "report-phone.png")
        assert browser.overflow() == 0
    finally:
        browser.size(1200)


@pytest.mark.processes
def test_values_show_under_the_pointer(browser: Browser) -> None:
    browser.ask(
        "const svg = document.getElementById('loss-epochs-0'); svg.scrollIntoView({block: 'center'});"
        "const box = svg.getBoundingClientRect();"
        "svg.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + box.width / 2, "
        "clientY: box.top + box.height / 2}))"
    )
    tip = browser.ask("return document.querySelector('.tip.on').innerText")
    assert "epochs" in tip
    assert {"sequential Caffe", "sync, 2 workers", "easgd, 2 workers"} <= set(tip.splitlines())
    assert browser.errors() == []


@pytest.mark.processes
def test_the_policy_of_the_page_lets_no_other_script_in(browser: Browser) -> None:
    browser.ask(
        "const script = document.createElement('script'); script.textContent = 'window.stranger = true';"
        "document.body.append(script)"
    )
    assert browser.ask("return window.stranger === undefined")
    assert any("Content Security Policy" in line for line in browser.errors())


def test_the_page_needs_no_network(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)[^"']*""", text) == []
    assert "url(#" in text
    assert re.findall(r"url\((?!#)|@import|https?://|\bstyle=", text) == []


def test_the_table_beside_the_page_has_its_figures(page: Path) -> None:
    rows = list(csv.DictReader(page.with_suffix(".csv").read_text().splitlines()))
    assert [row["series"] for row in rows] == [
        "sequential Caffe",
        "sync, 2 workers",
        "easgd, 2 workers",
    ]
    assert float(rows[1]["epoch_factor"]) == pytest.approx(1.0, abs=0.01)
    assert page.with_suffix(".png").stat().st_size > 20_000


@pytest.fixture(scope="module")
def long_names(run_folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of runs that differ in many options, made elsewhere, without their solver."""
    folder = tmp_path_factory.mktemp("long")
    for run, best in (("first", 0.95), ("second", 0.2), ("third", 0.3)):
        shutil.copytree(run_folders[1], folder / run)
        options = yaml.safe_load((folder / run / "config.yaml").read_text())
        options |= {f"a_long_option_{at}": f"{run}-value" for at in range(8)}
        options |= {"solver": str(folder / "gone.prototxt")}
        (folder / run / "config.yaml").write_text(yaml.safe_dump(options))
        log = folder / run / "metrics.jsonl"
        log.write_text(re.sub(r'"accuracy":[\d.]+', f'"accuracy":{best}', log.read_text()))
    words = ["report", *(str(folder / run) for run in ("first", "second", "third"))]
    done = CliRunner().invoke(main, [*words, "-o", str(folder / "page.html")])
    assert done.exit_code == 0, done.output
    return folder / "page.html"


@pytest.mark.processes
def test_long_names_take_nothing_from_the_charts(
    browser: Browser, long_names: Path, tmp_path: Path
) -> None:
    browser.open(long_names)
    browser.screenshot(Path(SHOTS or tmp_path) / "report-long-names.png")
    cut = browser.ask(
        "return [...document.querySelectorAll('svg.chart')].flatMap((svg) => [...svg.querySelectorAll('text')]"
        ".filter((text) => text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1)"
        ".map((text) => text.textContent))"
    )
    assert cut == []
    assert browser.overflow() == 0
    dark = np.asarray(Image.open(long_names.with_suffix(".png")).convert("L")) < 100
    edges = np.diff(dark.astype(int), axis=1, prepend=0, append=0)
    axes = [end - begin for row in edges
            for begin, end in zip(np.flatnonzero(row > 0), np.flatnonzero(row < 0), strict=True)]  # fmt: skip
    assert max(axes) > 0.8 * dark.shape[1]


@pytest.mark.processes
def test_the_best_score_may_be_the_references(browser: Browser, long_names: Path) -> None:
    browser.open(long_names)
    tiles = browser.ask(
        "return [...document.querySelectorAll('.tile')].map((tile) => tile.innerText)"
    )
    (best,) = [tile for tile in tiles if tile.startswith("best accuracy")]
    assert best.splitlines()[1] == "0.9500"
    assert "first-value" in best


@pytest.mark.processes
def test_the_log_knows_how_many_records_an_epoch_has(browser: Browser, long_names: Path) -> None:
    browser.open(long_names)
    assert "The number of training records is not known" not in browser.text()
    assert "64 merged images" in browser.text()


@pytest.mark.processes
def test_a_run_alone_is_not_compared_with_itself(
    browser: Browser, run_folders: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "page.html"
    for words, others in (([], set[str]()), (["--target-loss", "1.2"], {"loss to reach"})):
        done = CliRunner().invoke(main, ["report", str(run_folders[1]), "-o", str(target), *words])
        assert done.exit_code == 0, done.output
        browser.open(target)
        browser.screenshot(Path(SHOTS or tmp_path) / "report-alone.png")
        text = browser.text()
        said = ("epoch factor", "throughput factor", "speed-up", "Against", "loss to reach", "best")
        assert {one for one in said if one in text} == others
        assert "accuracy" in text
        assert browser.errors() == []
    (row,) = csv.DictReader(target.with_suffix(".csv").read_text().splitlines())
    assert (row["epoch_factor"], row["speedup"]) == ("", "")
    assert float(row["images_per_s"]) > 0


def test_without_matplotlib_there_are_the_page_and_the_table_and_a_sentence(
    run_folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    target = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", str(run_folders[1]), "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.csv", "page.html"]
    assert done.stderr == (
        "speedo: the report's picture (.png) needs the Python package matplotlib: "
        "pip install 'speedo[plot]'\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "start"),
    [
        (["report", "--png"], "run.png", b"\x89PNG"),
        (["report", "--png"], "run.pdf", b"%PDF"),
        (["report", "--png"], "run.svg", b"<?xml"),
    ],
)
def test_the_picture_alone_is_drawn_in_the_form_of_its_name(
    run_folders: list[Path], tmp_path: Path, command: list[str], name: str, start: bytes
) -> None:
    target = tmp_path / name
    done = CliRunner().invoke(main, [*command, *map(str, run_folders[:2]), "-o", str(target)])
    assert (done.exit_code, done.output) == (0, f"{target}\n")
    assert target.read_bytes().startswith(start)
    assert target.stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "is no running run"),
        (["RUN", "-o", "page.txt"], "give a name that ends in .html or .htm"),
        (["RUN", "--png", "-o", "page.html"], "give a name that ends in .png or .pdf or .svg"),
        (["RUN", "--png", "-o", "/nowhere/run.png"], "cannot be written"),
        (["RUN", "-o", "/nowhere/page.html"], "cannot be written"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    run_folders: list[Path], arguments: list[str], words: str
) -> None:
    words_given = [str(run_folders[0]) if one == "RUN" else one for one in arguments]
    done = CliRunner().invoke(main, ["report", *words_given])
    assert done.exit_code != 0
    assert words in done.output
    assert "Traceback" not in done.output


def contrast(one: str, other: str) -> float:
    """Of two CSS colours, as the Web Content Accessibility Guidelines define it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
