"""Lets a process compute for a share of the time only, as on a slower machine: it is stopped and continued in turn.

throttled.py SHARE COMMAND [ARGUMENT ...]
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

PERIOD_S = 0.02


def throttle(process: int, share: float, over: threading.Event) -> None:
    """Until it is `over`, or the process is."""
    with contextlib.suppress(ProcessLookupError):
        while not over.is_set():
            os.kill(process, signal.SIGSTOP)
            over.wait((1.0 - share) * PERIOD_S)
            os.kill(process, signal.SIGCONT)
            over.wait(share * PERIOD_S)


def main() -> int:
    """Passes the command's status on."""
    with subprocess.Popen(sys.argv[2:]) as child:
        over = threading.Event()
        arguments = (child.pid, float(sys.argv[1]), over)
        threading.Thread(target=throttle, args=arguments, daemon=True).start()
        try:
            return child.wait()
        finally:
            over.set()


if __name__ == "__main__":
    sys.exit(main())
