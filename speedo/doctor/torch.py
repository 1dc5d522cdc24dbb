"""Checks PyTorch, its devices, and which engine works on this node: `python -m speedo.doctor.torch` imports it.

Its import takes seconds, and a build for other libraries may end the process; so a child does it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from speedo.doctor.base import Finding, fail, ok, warn
from speedo.doctor.caffe import IMPORT_S
from speedo.engines.make import CAFFE_REMEDY, TORCH_REMEDY, EngineName, is_installed
from speedo.engines.native_failures import describe_death
from speedo.engines.pytorch.devices import load_torch, names_of_devices
from speedo.errors import EngineError
from speedo.system.import_order import with_our_path

_MARK: Final = "speedo-torch: "


@dataclass(frozen=True, slots=True)
class Torch:
    """What was found: the finding, and the number of CUDA devices."""

    finding: Finding
    devices: int = 0

    @property
    def works(self) -> bool:
        return self.finding.level == "ok"


NOT_INSTALLED: Final = Torch(warn("torch", "PyTorch is not installed", TORCH_REMEDY))


def torch() -> Torch:
    """Version of PyTorch, and the devices that it sees."""
    if not is_installed("torch"):
        return NOT_INSTALLED
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", "speedo.doctor.torch"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_S,
            env=with_our_path(os.environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"its import did not end within {IMPORT_S:.0f} s"
        return Torch(fail("torch", text, f"{TORCH_REMEDY} once more"))
    answers = [line for line in child.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        died = describe_death(child.stderr, child.returncode)
        return Torch(
            fail("torch", f"its import ends the process: {died}", f"{TORCH_REMEDY} once more")
        )
    answer = json.loads(answers[-1].removeprefix(_MARK))
    if "problem" in answer:
        return Torch(fail("torch", answer["problem"]))
    names = [f"cuda:{index} {name}" for index, name in enumerate(answer["devices"])]
    text = f"{answer['version']}, devices: cpu{''.join(f', {name}' for name in names)}"
    return Torch(ok("torch", text), len(names))


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


def _with_device(found: Torch, device: str) -> Finding:
    """The finding of a PyTorch that works, for this --device."""
    number = int(device.removeprefix("cuda:")) if device.startswith("cuda:") else 0
    if device in ("auto", "cpu") or number < found.devices:
        return found.finding
    return fail(
        "torch", f"{found.finding.text}, and the run wants --device {device}",
        "use --device auto or cpu, or install a driver and a build of PyTorch that fit the GPU",
    )  # fmt: skip


def main() -> None:
    """The child's part."""
    try:
        answer = {"version": str(load_torch().__version__), "devices": names_of_devices()}
    except EngineError as error:
        answer = {"problem": str(error)}
    except Exception as error:
        answer = {"problem": f"its import fails ({type(error).__name__}: {error}): {TORCH_REMEDY}"}
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
