"""A script that has joined a run gets freed memory again without a page fault, unless its user decides otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# 40 MB are more than glibc keeps by itself, whatever was freed before.
SCRIPT = """
import resource
import numpy as np
import speedo

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

with speedo.join({"w": np.zeros(1, np.float32)}):
    np.ones(10_000_000, np.float32)
    before = faults()
    for _ in range(20):
        np.ones(10_000_000, np.float32)
    print(faults() - before)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "users",
    [
        {},
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_a_joined_script_keeps_what_it_frees(users: dict[str, str]) -> None:
    own = {
        name: value
        for name, value in os.environ.items()
        if "MALLOC_" not in name and name != "GLIBC_TUNABLES"
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**own, **users},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (int(done.stdout) >= 20) == bool(users)
