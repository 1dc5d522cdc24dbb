"""The picture of a launch: rows on a terminal, lines elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from speedo.launch.picture import HostsPicture


def picture(terminal: bool) -> tuple[HostsPicture, io.StringIO]:
    out = io.StringIO()
    made = HostsPicture(Console(file=out, force_terminal=terminal, width=100, color_system=None))
    made.host("node1", "master, 1 worker")
    made.host("node2", "2 workers")
    return made, out


def show(made: HostsPicture) -> None:
    with made:
        made.state("node1", "training")
        made.state("node2", "joined", told=True)
        made.state("node2", "joined", told=True)
        made.master_said("a note")
        made.master_said("iteration 5/10, loss 1.0000")
        made.master_said("iteration 6/10, loss 0.9000")


def test_a_terminal_has_the_newest_progress_above_a_row_for_each_host() -> None:
    made, out = picture(terminal=True)
    show(made)
    last = out.getvalue().rpartition("a note")[2]
    rows = [" ".join(line.split()) for line in last.splitlines()]
    (first,) = (
        number for number, row in enumerate(rows) if "node1" in row and "joined" in rows[number + 1]
    )
    assert rows[first] == "node1 master, 1 worker training"
    assert "iteration 6/10, loss 0.9000" in rows[first - 2]


def test_without_a_terminal_each_change_is_a_line_once() -> None:
    made, out = picture(terminal=False)
    show(made)
    assert out.getvalue().splitlines() == [
        "node2: joined",
        "a note",
        "iteration 5/10, loss 1.0000",
        "iteration 6/10, loss 0.9000",
    ]
