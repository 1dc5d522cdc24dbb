"""The one picture of a launch: the master's progress and a row per host on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from speedo.watch.console import put_line, shown

PROGRESS: Final = re.compile(r"iteration (\d{1,18})/")


class HostsPicture:
    """Hosts with what runs there and their state; on a terminal the master's progress line stands above them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._progress = ""
        self._hosts: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, refresh_per_second=4, get_renderable=self._drawn
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def host(self, name: str, runs: str) -> None:
        """A host and what is to run there, in words."""
        self._hosts[name] = [runs, "connecting"]

    def state(self, name: str, state: str, *, told: bool = False) -> None:
        """The present state of a host; `told` also as a line for those who have no terminal."""
        if self._hosts[name][1] != state:
            self._hosts[name][1] = state
            if told and self._live is None:
                self.note(f"{name}: {state}")

    def note(self, text: str) -> None:
        """A line above the picture."""
        put_line(self._console, text)

    def master_said(self, text: str) -> None:
        """A line of the master's: its progress has a place in the picture."""
        if PROGRESS.match(text):
            self._progress = text
            if self._live is not None:
                return
        self.note(text)

    def _drawn(self) -> Group:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("host", "runs", "state"):
            table.add_column(name)
        for name, (runs, state) in self._hosts.items():
            table.add_row(shown(name), shown(runs), shown(state))
        return Group(*([shown(self._progress)] if self._progress else []), table)
