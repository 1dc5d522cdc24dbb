"""What the launcher and a host say to each other over ssh: a JSON object a line, in both directions.

To the host, on standard input: `start` (a command of speedo, with its environment), `stop` (a signal for one), `beat`,
`hard` (the end that follows is at once), `fetch` (the logs of a command whose connection was lost), `got` (all logs of
a command have come: until then they stay there). From the host, on standard output, each line after a record separator,
so that what a login shell prints there is no message: `hello`, `started` (a command, with the folder of its logs),
`line` (of its output), `ended` (its status), `file` (a part of a log), `filed` (all are sent).
The end of standard input, or silence, ends everything on the host.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

COMMAND: Final = "launch-host"  # the hidden command of the host's end
SEPARATOR: Final = b"\x1e"
BEAT_S: Final = 5.0
SILENCE_S: Final = 60.0  # without a beat: the launcher, its machine or the network is gone


def order(**values: Any) -> bytes:
    """A line to a host."""
    return json.dumps(values).encode() + b"\n"


def event(**values: Any) -> bytes:
    """A line from a host."""
    return SEPARATOR + json.dumps(values).encode() + b"\n"


def read_event(line: bytes) -> Mapping[str, Any] | None:
    """The event in a line; None for anything else that was printed there."""
    _, found, text = line.partition(SEPARATOR)
    if not found:
        return None
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def own_speedo(*words: str) -> list[str]:
    """A command of the SpeeDO that runs this."""
    return [sys.executable, "-P", "-m", "speedo", *words]
