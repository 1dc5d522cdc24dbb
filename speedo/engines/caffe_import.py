"""Imports pycaffe, in this one place, after setting the environment variables that it reads once at import."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from speedo.engines.openblas_kernels import use_the_processor
from speedo.errors import EngineError

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


def with_our_path(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a child that must import this same package, wherever its parent found it."""
    root = str(Path(__file__).resolve().parents[2])
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{root}{os.pathsep}{path}" if path else root
    return environment


@cache
def load_caffe() -> Any:
    """The module `caffe`; raises `EngineError` where there is none."""
    prepare_environment(threads=None)
    try:
        import caffe
        import caffe.proto.caffe_pb2
    except ImportError as error:
        raise EngineError(
            f"pycaffe cannot be imported here ({error}): {_remedy(str(error))}"
        ) from error
    use_the_processor()
    return caffe


def _remedy(said: str) -> str:
    """What to do about an import that failed with these words."""
    if "cannot open shared object file" in said:
        packages = _libraries_of_our_wheel()
        if packages:
            return (
                "install the libraries that it was built for: "
                f"apt-get install --no-install-recommends {' '.join(packages)}"
            )
        return "install the library that it was built for, or run `make setup` on this node"
    return (
        "run `make setup` on this node, install the wheels of `make wheels`, "
        "or start SpeeDO with the interpreter that has it"
    )


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
