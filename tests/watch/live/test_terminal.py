"""`speedo watch` in a terminal, and where there is none."""

from __future__ import annotations

import io
from pathlib import Path

from click.testing import CliRunner
from rich.console import Console

from speedo.cli.main import main
from speedo.run_dir.directory import write_result
from speedo.watch.control_socket import ControlServer
from speedo.watch.live.live_run import LiveRun
from speedo.watch.live.terminal import plot, view, watch
from tests.watch.live.test_history import result, simulated, status, write


def test_a_curve_is_drawn_between_its_least_and_its_largest_value() -> None:
    assert plot([(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)], 2, 1) == ["       3 ⡠⠊"]
    falling = plot([(0, 2.5), (10, 0.5)], 8, 3)
    assert [row[:9].strip() for row in falling] == ["2.5", "", "0.5"]
    assert falling[0][9] != "⠀" == falling[0][-1]
    assert falling[-1][-1] != "⠀" == falling[-1][9]
    assert plot([(5, 1.0)], 4, 2)[0].endswith("⠁⠀⠀⠀")
    assert plot([], 4, 3) == ["nothing yet", "", ""]


def drawn(live: LiveRun, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(view(live, width))
    return console.export_text()


def test_a_run_is_shown_with_its_curves_and_its_workers(tmp_path: Path, runtime: Path) -> None:
    write(tmp_path, *(result(0, one, one / 10) for one in range(1, 101)))
    write(
        tmp_path,
        {
            "time": 9.0,
            "event": "test",
            "version": 9,
            "iteration": 90,
            "metrics": {"accuracy": 0.875},
        },
    )
    write(tmp_path, {"time": 10.0, "event": "left", "worker": 1, "cause": "it was killed"})
    away = {
        **status(tmp_path)["workers"][0],
        "worker": 1,
        "away": True,
        "state": "restarting in 1 s: it was killed",
    }
    workers = [{**away, "worker": 0, "state": "training", "away": False, "team": 0}, away]
    servers = [{"server": 0, "host": "beta", "bytes": 2_500_000, "state": "serving"}]
    answer = status(tmp_path, workers=workers, servers=servers, iteration=100, wanted=2)
    with ControlServer("1a2b", lambda asked: answer):
        live = LiveRun(tmp_path)
        live.look()
        for width in (60, 120):
            text = drawn(live, width)
            for word in (
                "training loss",
                "test/accuracy",
                "iteration 100/110",
                "accuracy 0.8750",
                "beta",
                "2.5",
            ):
                assert word in text, (word, text)
        assert "it was killed (" in text
        assert "restarting in 1 s" in text
        assert "about 1 s left" in text


def test_without_a_terminal_a_line_is_written_when_something_is_new(
    tmp_path: Path, runtime: Path
) -> None:
    simulated(tmp_path)
    write_result(tmp_path, {"iteration": 200, "accuracy": 0.9, "reason": "reached max_iter 200", "model": "m",
                            "complete": True, "mode": "weed-out"})  # fmt: skip
    done = CliRunner().invoke(main, ["watch", str(tmp_path)])
    assert done.exit_code == 0
    (line,) = done.output.splitlines()
    assert line.startswith(f"{tmp_path.name}: finished, iteration 20")
    assert line.endswith("reached max_iter 200")


def test_the_view_ends_with_the_run(tmp_path: Path, runtime: Path) -> None:
    write(tmp_path, *(result(0, one, one / 10) for one in range(1, 11)))
    answers = [status(tmp_path)] * 4
    live = LiveRun(tmp_path)
    with ControlServer("1a2b", lambda asked: answers.pop()) as server:

        class Ending(LiveRun):
            def look(self) -> bool:
                if len(answers) == 1:
                    server.__exit__(None, None, None)
                return super().look()

        live = Ending(tmp_path)
        console = Console(force_terminal=True, width=100, file=io.StringIO())
        watch(live, console, 0.1)
    assert live.now()["state"] == "no master"
