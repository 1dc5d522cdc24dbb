"""Imports pycaffe, in this one place, after setting the environment variables that it reads once at import."""

from __future__ import annotations

import importlib.util
import os
import traceback
from collections.abc import MutableMapping
from functools import cache
from importlib import metadata
from typing import Any

from speedo.engines.openblas_kernels import use_the_processor
from speedo.errors import EngineError
from speedo.system.import_order import on_pythonpath
from speedo.system.remedies import install_pycaffe

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def prepare_environment(
    threads: int | None = 1, environment: MutableMapping[str, str] | None = None
) -> None:
    """Set what glog and the BLAS read once, when pycaffe is first imported.

    glog is held to errors (level 2) unless the user chose a level. `threads` is the number of BLAS
    threads of this process; None leaves the user's own setting.
    """
    chosen = os.environ if environment is None else environment
    chosen.setdefault("GLOG_minloglevel", "2")
    # scikit-image pulls in matplotlib, which must not look for a display on a worker node.
    chosen.setdefault("MPLBACKEND", "Agg")
    if threads is not None:
        for name in _THREAD_VARIABLES:
            chosen[name] = str(threads)


@cache
def load_caffe() -> Any:
    """The module `caffe`; raises `EngineError` where there is none."""
    prepare_environment(threads=None)
    try:
        import caffe
        import caffe.proto.caffe_pb2
    except Exception as error:
        # A Caffe for Python 2 raises a SyntaxError, a caffe_pb2 of an old protoc a TypeError.
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        said = f"{kind}{str(error).partition(chr(10))[0]}"
        raise EngineError(f"pycaffe cannot be imported here ({said}): {_remedy(error)}") from error
    use_the_processor()
    return caffe


def _remedy(error: Exception) -> str:
    """What to do about an import that failed so."""
    said = str(error)
    if words := of_the_user(*_files(error)):
        return words
    if "cannot open shared object file" in said:
        packages = _libraries_of_our_wheel()
        if packages:
            return (
                "install the libraries that it was built for: "
                f"apt-get install --no-install-recommends {' '.join(packages)}"
            )
        return f"install the library that it was built for, or {install_pycaffe()}"
    return f"{install_pycaffe()}, or start SpeeDO with the interpreter that has it"


def of_the_user(*files: str) -> str:
    """Which of these files, or that of `caffe`, comes from the user's PYTHONPATH, and the remedy; or nothing."""
    found = importlib.util.find_spec("caffe")
    for file in (*files, *([found.origin] if found is not None and found.origin else [])):
        if folder := on_pythonpath(file):
            return f"{file} was imported, because {folder} is on PYTHONPATH: unset PYTHONPATH, or take it out there"
    return ""


def _files(error: Exception) -> list[str]:
    """The files in which an import failed, the last one first."""
    files = [frame.filename for frame in reversed(traceback.extract_tb(error.__traceback__))]
    if isinstance(error, SyntaxError) and error.filename:
        files.insert(0, error.filename)
    return files


def _libraries_of_our_wheel() -> list[str]:
    """The Debian packages that the installed wheel of pycaffe names; none for a pycaffe of the user's own."""
    try:
        named = metadata.metadata("pycaffe").get_all("Requires-External")
    except metadata.PackageNotFoundError:
        return []
    return [str(name) for name in named or ()]


def is_cpu_only() -> bool:
    """Whether this Caffe was built without CUDA: only a GPU build gives blobs a device pointer."""
    return not hasattr(load_caffe()._caffe.Blob, "_gpu_data_ptr")


def let_others_run(value: bool) -> None:
    """Whether to release the GIL while Caffe computes; a pycaffe that we did not build always holds it."""
    native = load_caffe()._caffe
    if hasattr(native, "let_others_run"):
        native.let_others_run(value)
