"""Checks all records while a run trains, in a child process of lowest priority that ends with its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from speedo.engines.caffe_import import prepare_environment
from speedo.engines.record_rules import RecordRule
from speedo.system.import_order import with_our_path

END_S = 5.0


class RecordWatch:
    """Checks what `check_in_subprocess` left unchecked; `cache` is the folder that lists sources without problems.

    `note` gets what is to be said of good records: `known` at once, the rest when it is found.
    """

    def __init__(
        self,
        rules: Collection[RecordRule],
        cache: Path | None,
        note: Callable[[str], None] = lambda text: None,
        known: Collection[str] = (),
    ) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._problem: str | None = None
        self._note, self._known = note, known
        for text in known:
            note(text)
        if not rules:
            return
        environment = with_our_path(os.environ)
        prepare_environment(1, environment)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "speedo.engines.record_check"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        request = {
            "rules": [asdict(rule) for rule in rules],
            "cache": None if cache is None else str(cache),
        }
        assert self._child.stdin is not None
        with suppress(OSError):  # a child that is dead already has nothing to say
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to check."""
        return self._child is None

    def problem(self) -> str | None:
        """A sentence about the first bad record, if one was found by now."""
        if self._child is not None and self._child.poll() is not None:
            assert self._child.stdout is not None
            answer = self._child.stdout.read()
            if answer.strip():
                self._problem, notes = json.loads(answer)
                for text in notes:
                    if text not in self._known:
                        self._note(text)
            self.close()
        return self._problem

    def close(self) -> None:
        """End the check."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait(END_S)
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
