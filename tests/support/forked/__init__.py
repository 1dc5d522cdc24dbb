"""Commands and actors of the product as forks of one process that has imported all that they need.

A start of Ray costs seconds of processor time, and most tests of real runs ask nothing of Ray. So the same commands run
here without it: `actors.py` has the few functions of Ray that a run on one machine calls, each actor a process of its
own, and `server.py` forks them. All else is the product's. `make faults` runs the same tests on Ray.
"""

from __future__ import annotations

import os
from typing import Final

from tests.faults.rows import EVERY

WITHOUT_RAY: Final = os.environ.get(EVERY) != "all"
"""Whether tests of whole runs, other than rows of the fault matrix, run on forks."""
