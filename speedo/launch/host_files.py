"""What each host leaves in `hosts/HOST/`: the output of its commands, and the logs that it sends at their end."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from speedo.run_dir.directory import HOSTS, make_own_folders
from speedo.system.bounds import said
from speedo.system.files_below import append_below, name_below

MOST_BYTES: Final = 1 << 30  # of one host
MOST_FILES: Final = 2000  # of one host; each of its commands sends at most 500


class HostFiles:
    """The folder of one host; what the disk does not take is dropped, and said once."""

    def __init__(self, run_dir: Path, host: str) -> None:
        self.folder = run_dir / HOSTS / host
        self.problem = ""
        self._bytes = 0
        self._names: set[str] = set()
        self._begun: set[str] = set()
        try:
            make_own_folders(self.folder)
        except OSError as error:
            self._failed(error)

    def line(self, values: Mapping[str, Any]) -> None:
        """A line that a command printed."""
        self._append(
            f"{values.get('of')}.log", (str(values.get("line")) + "\n").encode(errors="replace")
        )

    def part(self, values: Mapping[str, Any]) -> None:
        """A part of a log, in a folder with the name of its command."""
        of, file = values.get("of"), str(values.get("file"))
        # Either of them alone may not lead out, nor may both together.
        whole = f"{of}/{file}" if name_below(file) else ""
        try:
            self._append(whole, base64.b64decode(values.get("data", "")), file)
        except (ValueError, TypeError):
            self.problem = self.problem or f"a part of its file {said(file)} is damaged"

    def begin_again(self) -> None:
        """Logs come a second time, from their beginning."""
        self._begun = {name for name in self._begun if "/" not in name}

    def text(self, name: str, lines: list[str]) -> None:
        """A small file of its own, if there is anything to put in."""
        if lines:
            self._append(name, ("\n".join(lines) + "\n").encode(errors="replace"))

    def _append(self, text: str, data: bytes, told: str = "") -> None:
        """Names that lead out of the folder are refused: one name is checked, and the same one is written."""
        name = name_below(text)
        if name is None:
            self._refuse(f"it sent a file with the name {said(told or text)}")
            return
        key = str(name)
        self._names.add(key)
        if len(self._names) > MOST_FILES:
            self._names.discard(key)
            self._refuse(f"it has more than {MOST_FILES} log files")
            return
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            self._refuse(f"its logs have more than {MOST_BYTES >> 30} GiB")
            return
        try:
            append_below(self.folder, name, data, fresh=key not in self._begun)
            self._begun.add(key)
        except OSError as error:
            self._failed(error)

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _failed(self, error: OSError) -> None:
        self.problem = self.problem or f"{self.folder} cannot be written: {error.strerror}"
