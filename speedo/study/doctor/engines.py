"""Checks both engines in child processes: `python -m speedo.study.doctor.engines caffe` or `torch` imports one.

An import takes seconds, and a library that was built for others may end the process that imports it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from speedo.engines.caffe_import import is_cpu_only, load_caffe, of_the_user
from speedo.engines.child import tell
from speedo.engines.make import CAFFE_REMEDY, TORCH_REMEDY, EngineChoice, is_installed
from speedo.engines.native_failures import describe_death
from speedo.engines.openblas_kernels import use_the_processor
from speedo.engines.pytorch.devices import bytes_of_devices, load_torch, names_of_devices
from speedo.errors import EngineError
from speedo.study.doctor.base import Finding, fail, ok, warn
from speedo.system.bounds import EngineName
from speedo.system.import_order import with_our_path
from speedo.system.remedies import install_pycaffe

IMPORT_S: Final = 60.0
PYCAFFE_REMEDY: Final = f"{install_pycaffe()}, or use the interpreter that has pycaffe"
_MARK: Final = "speedo-engine: "


@dataclass(frozen=True, slots=True)
class Torch:
    """What was found: the finding, the number of CUDA devices, and the bytes of memory of each."""

    finding: Finding
    devices: int = 0
    memory: tuple[int, ...] = ()

    @property
    def works(self) -> bool:
        return self.finding.level == "ok"


NOT_INSTALLED: Final = Torch(warn("torch", "PyTorch is not installed", TORCH_REMEDY))


def pycaffe() -> Finding:
    """Version and path of pycaffe, whether it uses GPUs, and the processor whose routines OpenBLAS uses."""
    answer = _imported("caffe", "pycaffe", PYCAFFE_REMEDY, of_the_user() or PYCAFFE_REMEDY)
    if isinstance(answer, Finding):
        return answer
    return ok(
        "pycaffe",
        f"{answer['version']} at {answer['path']}, {answer['layers']} layer types, "
        + ("with GPU" if answer["gpu"] else "for the CPU")
        + (f", OpenBLAS computes as for {answer['blas']}" if answer["blas"] else ""),
    )


def torch() -> Torch:
    """Version of PyTorch, and the devices that it sees."""
    if not is_installed("torch"):
        return NOT_INSTALLED
    remedy = f"{TORCH_REMEDY} once more"
    answer = _imported("torch", "torch", remedy, remedy)
    if isinstance(answer, Finding):
        return Torch(answer)
    names = [f"cuda:{index} {name}" for index, name in enumerate(answer["devices"])]
    text = f"{answer['version']}, devices: cpu{''.join(f', {name}' for name in names)}"
    return Torch(ok("torch", text), len(names), tuple(answer["memory"]))


def _imported(engine: EngineName, name: str, slow: str, dead: str) -> dict[str, Any] | Finding:
    """What a child says of this engine, or the finding `name` that it cannot be imported.

    `slow` is the remedy for an import that does not end, `dead` for one that ends the process.
    """
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", "speedo.study.doctor.engines", engine],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_S,
            env=with_our_path(os.environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail(name, f"its import did not end within {IMPORT_S:.0f} s", slow)
    answers = [line for line in child.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        died = describe_death(child.stderr, child.returncode)
        return fail(name, f"its import ends the process: {died}", dead)
    answer: dict[str, Any] = json.loads(answers[-1].removeprefix(_MARK))
    return fail(name, answer["problem"]) if "problem" in answer else answer


def engines(caffe: Finding, found: Torch, wanted: EngineName, device: str) -> list[Finding]:
    """Findings about both engines, as far as the node needs them; the last is ok if the wanted one works here."""
    caffe_works = caffe.level != "fail"
    if wanted == "torch":
        torch_finding = found.finding
        if found is NOT_INSTALLED:
            torch_finding = fail("torch", "PyTorch is not installed", TORCH_REMEDY)
        elif found.works:
            torch_finding = _with_device(found, device)
        if not caffe_works:
            caffe = ok("pycaffe", "does not work here, and is not needed with the engine torch")
    else:
        torch_finding = found.finding
        if not found.works:
            said = "is not installed" if found is NOT_INSTALLED else "does not work here"
            torch_finding = ok("torch", f"PyTorch {said}, and is not needed with the engine caffe")
    working = [name for name, works in (("caffe", caffe_works), ("torch", found.works)) if works]
    if wanted in working:
        others = "".join(f"; --engine {name} works here, too" for name in working if name != wanted)
        last = ok("engine", f"{wanted}{others}")
    elif working:
        last = warn(  # its own finding fails
            "engine", f"{wanted} does not work here, but {working[0]} does",
            f"train with --engine {working[0]}, or mend the above",
        )  # fmt: skip
    else:
        last = warn("engine", "none works here", f"{CAFFE_REMEDY}; or {TORCH_REMEDY}")
    return [caffe, torch_finding, last]


def memory_of(found: Torch, choice: EngineChoice) -> tuple[int, ...]:
    """The bytes of each GPU that workers with this choice compute on; none for the CPU."""
    if choice.engine == "caffe" or choice.device == "cpu":
        return ()
    one = choice.device.removeprefix("cuda:")
    return found.memory[int(one) : int(one) + 1] if one.isdigit() else found.memory


def _with_device(found: Torch, device: str) -> Finding:
    """The finding of a PyTorch that works, for this --device."""
    number = int(device.removeprefix("cuda:")) if device.startswith("cuda:") else 0
    if device in ("auto", "cpu") or number < found.devices:
        return found.finding
    return fail(
        "torch", f"{found.finding.text}, and the run wants --device {device}",
        "use --device auto or cpu, or install a driver and a build of PyTorch that fit the GPU",
    )  # fmt: skip


def _facts(engine: str) -> dict[str, Any]:
    """The child's part. Raises what the import does."""
    if engine == "torch":
        version, memory = str(load_torch().__version__), bytes_of_devices()
        return {"version": version, "devices": names_of_devices(), "memory": memory}
    caffe = load_caffe()
    return {
        "version": str(getattr(caffe, "__version__", "of unknown version")),
        "path": str(Path(str(caffe.__file__)).parent),
        "layers": len(caffe.layer_type_list()),
        "gpu": not is_cpu_only(),
        "blas": use_the_processor(),
    }


def main(engine: str) -> None:
    """The child: one line with what it has found."""
    try:
        answer = _facts(engine)
    except EngineError as error:
        answer = {"problem": str(error)}
    except Exception as error:
        remedy = TORCH_REMEDY if engine == "torch" else PYCAFFE_REMEDY
        answer = {"problem": f"its import fails ({type(error).__name__}: {error}): {remedy}"}
    tell(_MARK, answer)


if __name__ == "__main__":
    main(sys.argv[1])
