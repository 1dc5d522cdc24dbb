"""What stands behind a Ray node: a small shell that ends what is left of it, and removes its folder.

A process of a node whose raylet was killed may look for it, and for its master, up to a minute longer, and nobody is
its parent any more. But each holds files in the node's folder open, and by that it is known.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from speedo.system.background_process import start_keeper

_WAIT_S: Final = 15.0
# A node whose process was killed has 2 s to end by itself; one that was stopped has had its time. What no signal
# ends, as a process that waits for a broken disk, is left after 8 s more. $PPID is the process that started us.
_END_PROCESSES: Final = """
tries=0
if read -r _; then tries=20; fi
while [ $tries -lt 100 ]; do
    left=$(find /proc/[0-9]*/fd -maxdepth 1 -printf '%h %l\\n' | grep -F " $1/" | cut -d/ -f3 | grep -vx $PPID)
    [ -n "$left" ] || break
    [ $tries -lt 20 ] || kill -KILL $left
    tries=$((tries + 1))
    sleep 0.1
done
"""


@contextmanager
def kept(folder: str) -> Iterator[None]:
    """At the end of this context nobody but this process holds a file in the folder open, and it is gone."""
    keeper = start_keeper("speedo-ray", os.path.realpath(folder), script=_END_PROCESSES)
    try:
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):
            keeper.communicate(b"stopped\n", _WAIT_S)
