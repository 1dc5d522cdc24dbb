"""OpenBLAS in this process: its number of threads, and its routines for a processor that is newer than the library.

OpenBLAS has routines for many processors. On one that it does not know it uses those of the oldest (SSE3,
"Prescott"), for example Debian 12's 0.3.21 on an Intel Xeon of 2023. A matrix product then takes several times as
long.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Set
from pathlib import Path
from typing import Final

CHOICE: Final = "OPENBLAS_CORETYPE"  # read by OpenBLAS: the user's own choice
# None of them has AVX
_OLD: Final = frozenset({"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem"})
_NEWER: Final = (
    ("SkylakeX", frozenset({"avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl", "fma"})),
    ("Haswell", frozenset({"avx2", "fma"})),
)


def use_the_processor() -> str | None:
    """Make OpenBLAS use routines for this processor; returns their name, None if OpenBLAS is not loaded.

    Call it before the first computation. If the user has chosen the routines, they are kept.
    """
    try:
        library = _loaded()
        name = library.openblas_get_corename
        start, stop = library.gotoblas_dynamic_init, library.gotoblas_dynamic_quit
    except (OSError, AttributeError):
        return None
    name.restype = ctypes.c_char_p
    better = better_than(name().decode(), processor_flags())
    if better is not None and CHOICE not in os.environ:
        os.environ[CHOICE] = better
        try:
            stop()
            start()
        finally:
            del os.environ[CHOICE]
    return str(name().decode())


def use_threads(count: int) -> int | None:
    """Have OpenBLAS compute with this many threads; returns how many it takes, None if it is not loaded.

    What it reads from the environment it reads when it is loaded, and takes no more threads than the process had
    CPUs then; here it takes as many as it was built for (64 in Debian's).
    """
    try:
        library = _loaded()
        library.openblas_set_num_threads(count)
        return int(library.openblas_get_num_threads())
    except (OSError, AttributeError):
        return None


def _loaded() -> ctypes.CDLL:
    """The OpenBLAS that Caffe has loaded; raises `OSError` if it has another BLAS, or none yet."""
    return ctypes.CDLL("libopenblas.so.0", mode=os.RTLD_NOLOAD)


def better_than(taken: str, flags: Set[str]) -> str | None:
    """The routines for a processor with these flags if OpenBLAS has chosen `taken`."""
    if taken not in _OLD:
        return None
    return next((name for name, needed in _NEWER if needed <= flags), None)


def processor_flags(listing: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The processor's features, as the kernel names them; empty where it does not."""
    try:
        with listing.open(encoding="ascii", errors="replace") as lines:
            return next(
                (
                    frozenset(line.partition(":")[2].split())
                    for line in lines
                    if line.startswith("flags")
                ),
                frozenset(),
            )
    except OSError:
        return frozenset()
