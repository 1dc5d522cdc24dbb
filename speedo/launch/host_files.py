"""What each host leaves in `hosts/HOST/`: the output of its commands, and the logs that it sends at their end."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from speedo.run_dir.directory import make_own_folders

HOSTS: Final = "hosts"
MOST_BYTES: Final = 1 << 30  # of one host


class HostFiles:
    """The folder of one host; what the disk does not take is dropped, and said once."""

    def __init__(self, run_dir: Path, host: str) -> None:
        self.folder = run_dir / HOSTS / host
        self.problem = ""
        self._bytes = 0
        self._begun: set[str] = set()
        try:
            make_own_folders(self.folder)
        except OSError as error:
            self._failed(error)

    def line(self, values: Mapping[str, Any]) -> None:
        """A line that a command printed."""
        self._append(f"{values['of']}.log", (str(values["line"]) + "\n").encode(errors="replace"))

    def part(self, values: Mapping[str, Any]) -> None:
        """A part of a log. Names that lead out of the folder are refused."""
        name = PurePosixPath(str(values["file"]))
        if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in str(name):
            self.problem = self.problem or f"it sent a file with the name {str(name)!r}"
            return
        self._append(f"{values['of']}/{name}", base64.b64decode(values["data"]))

    def begin_again(self) -> None:
        """Logs come a second time, from their beginning."""
        self._begun = {name for name in self._begun if "/" not in name}

    def text(self, name: str, lines: list[str]) -> None:
        """A small file of its own, if there is anything to put in."""
        if lines:
            self._append(name, ("\n".join(lines) + "\n").encode(errors="replace"))

    def _append(self, name: str, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            self.problem = self.problem or f"its logs have more than {MOST_BYTES >> 30} GiB"
            return
        path = self.folder / name
        try:
            if name not in self._begun:
                self._begun.add(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.problem = self.problem or f"{self.folder} cannot be written: {error.strerror}"
