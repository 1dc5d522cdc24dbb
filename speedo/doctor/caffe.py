"""Checks whether pycaffe can be imported, in a child process: `python -m speedo.doctor.caffe`.

A pycaffe that was built for other libraries may end the process that imports it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from speedo.doctor.base import Finding, fail, ok
from speedo.engines.caffe_import import is_cpu_only, load_caffe, of_the_user
from speedo.engines.native_failures import describe_death
from speedo.engines.openblas_kernels import use_the_processor
from speedo.errors import EngineError
from speedo.system.import_order import with_our_path
from speedo.system.remedies import install_pycaffe

IMPORT_S: Final = 60.0
REMEDY: Final = f"{install_pycaffe()}, or use the interpreter that has pycaffe"
_MARK: Final = "speedo-caffe: "


def pycaffe() -> Finding:
    """Version and path of pycaffe, whether it uses GPUs, and the processor whose routines OpenBLAS uses."""
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", "speedo.doctor.caffe"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_S,
            env=with_our_path(os.environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail("pycaffe", f"its import did not end within {IMPORT_S:.0f} s", REMEDY)
    answers = [line for line in child.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        died = describe_death(child.stderr, child.returncode)
        return fail("pycaffe", f"its import ends the process: {died}", of_the_user() or REMEDY)
    answer = json.loads(answers[-1].removeprefix(_MARK))
    if "problem" in answer:
        return fail("pycaffe", answer["problem"])
    return ok(
        "pycaffe",
        f"{answer['version']} at {answer['path']}, {answer['layers']} layer types, "
        + ("with GPU" if answer["gpu"] else "for the CPU")
        + (f", OpenBLAS computes as for {answer['blas']}" if answer["blas"] else ""),
    )


def main() -> None:
    """The child's part."""
    try:
        caffe = load_caffe()
        answer = {
            "version": str(getattr(caffe, "__version__", "of unknown version")),
            "path": str(Path(str(caffe.__file__)).parent),
            "layers": len(caffe.layer_type_list()),
            "gpu": not is_cpu_only(),
            "blas": use_the_processor(),
        }
    except EngineError as error:
        answer = {"problem": str(error)}
    except Exception as error:
        answer = {"problem": f"its import fails ({type(error).__name__}: {error}): {REMEDY}"}
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
