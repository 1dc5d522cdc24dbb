"""OpenBLAS on a processor that it does not know: it is given the routines that the processor can run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedo.engines.openblas_kernels import CHOICE, better_than, processor_flags

AVX2 = {"sse3", "avx", "avx2", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"}
OLDEST = """
import ctypes, os, sys
os.environ["OPENBLAS_CORETYPE"] = "Prescott"
library = ctypes.CDLL("libopenblas.so.0")
library.openblas_get_corename.restype = ctypes.c_char_p
assert library.openblas_get_corename() == b"Prescott"
if sys.argv[1] == "unknown":
    del os.environ["OPENBLAS_CORETYPE"]
import numpy as np
from speedo.engines.caffe_import import load_caffe
net_file = sys.argv[2]
caffe = load_caffe()
taken = library.openblas_get_corename().decode()
net = caffe.Net(net_file, caffe.TEST)
net.params["product"][0].data[...] = np.arange(48, dtype=np.float32).reshape(6, 8)
net.blobs["data"].data[...] = np.arange(40, dtype=np.float32).reshape(5, 8)
net.forward()
expected = net.blobs["data"].data @ net.params["product"][0].data.T
assert (net.blobs["product"].data == expected).all()
print(taken, os.environ.get("OPENBLAS_CORETYPE"))
"""
THREADS = """
import os
from speedo.engines.caffe_import import load_caffe, prepare_environment
from speedo.engines.openblas_kernels import use_threads
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
before = use_threads(2)
prepare_environment(1)
load_caffe()
print(before, use_threads(3), use_threads(1))
"""
NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 5 dim: 8 } } }
layer { name: "product" type: "InnerProduct" bottom: "data" top: "product"
        inner_product_param { num_output: 6 bias_term: false } }
"""


@pytest.mark.parametrize(
    ("taken", "flags", "better"),
    [
        ("Prescott", AVX512, "SkylakeX"),
        ("Prescott", AVX2, "Haswell"),
        ("Nehalem", AVX2, "Haswell"),
        ("Prescott", {"sse3"}, None),
        ("Prescott", set(), None),
        ("Haswell", AVX512, None),
        ("Zen", AVX512, None),
        ("SkylakeX", AVX512, None),
    ],
)
def test_only_what_has_no_avx_is_replaced_and_only_by_what_can_run(
    taken: str, flags: set[str], better: str | None
) -> None:
    assert better_than(taken, flags) == better


def test_the_flags_are_those_of_the_kernel(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\nbugs\t\t: none\n")
    assert processor_flags(listing) == {"fpu", "avx2", "fma"}
    assert processor_flags(tmp_path / "none") == frozenset()


@pytest.mark.caffe
def test_threads_are_set_after_caffe_was_loaded_with_others() -> None:
    """A host loads Caffe before it knows which worker this will be, and a bound process has fewer CPUs than threads."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True
    )
    assert done.stdout == "None 3 1\n"


@pytest.mark.caffe
@pytest.mark.parametrize("case", ["unknown", "chosen"])
def test_caffe_computes_with_the_routines_of_this_processor(tmp_path: Path, case: str) -> None:
    """Unless the user has chosen others. What it computes is right, in either case."""
    net = tmp_path / "net.prototxt"
    net.write_text(NET)
    environment = {name: value for name, value in os.environ.items() if name != CHOICE}
    done = subprocess.run(
        [sys.executable, "-c", OLDEST, case, str(net)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    best = better_than("Prescott", processor_flags()) or "Prescott"
    expected = f"{best} None" if case == "unknown" else "Prescott Prescott"
    assert done.stdout.split("\n")[0] == expected
