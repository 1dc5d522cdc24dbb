"""First steps of real pycaffe, each in a process of its own: what Caffe refuses ends its process.

`caffe_steps(solvers, folder)` starts one child, which forks for each solver text.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speedo.engines.caffe_import import load_caffe, prepare_environment
from speedo.engines.native_failures import describe_death
from speedo.system.import_order import with_our_path


class Constant:
    """One learning rate."""

    def __init__(self, lr: float = 0.01) -> None:
        self._lr = lr

    def rate(self, iteration: int) -> float:
        return self._lr

    def from_base(self, lr: float) -> Constant:
        return Constant(lr)


def caffe_steps(texts: Sequence[str], folder: Path) -> list[Mapping[str, Any] | str]:
    """Of each SolverParameter `first_steps`, or what Caffe said when it ended."""
    for at, text in enumerate(texts):
        (folder / f"{at}.solver").write_text(text)
    environment = with_our_path(dict(os.environ))
    prepare_environment(1, environment)
    command = [sys.executable, "-m", "tests.support.caffe_steps", str(folder), str(len(texts))]
    root = Path(__file__).resolve().parents[2]
    subprocess.run(command, check=True, env=environment, cwd=root, timeout=600)
    found: list[Mapping[str, Any] | str] = []
    for at in range(len(texts)):
        result = folder / f"{at}.npz"
        if result.exists():
            with np.load(result) as arrays:
                found.append(dict(arrays))
        else:
            said = (folder / f"{at}.stderr").read_text(errors="replace")
            found.append(describe_death(said))
    return found


def first_steps(engine: Any) -> dict[str, Any]:
    """Weights, a gradient with its loss, and the update of the next two steps with theirs; names of blobs."""
    weights, gradient, delta = (engine.layout.zeros() for _ in range(3))
    engine.read_weights(weights)
    loss = engine.gradient(1, gradient)
    later = engine.step(2, delta)
    names = [blob.name for blob in engine.layout.blobs]
    return {
        "weights": weights, "gradient": gradient, "loss": loss, "delta": delta, "later": later, "names": names,
    }  # fmt: skip


def main(folder: Path, count: int) -> None:
    load_caffe()
    from speedo.engines.pycaffe import PycaffeEngine

    for at in range(count):
        child = os.fork()
        if child == 0:
            target = os.open(folder / f"{at}.stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(target, 2)
            text = (folder / f"{at}.solver").read_text()
            engine = PycaffeEngine(text, lr_policy=Constant(), folder=folder, scratch=folder)
            found = first_steps(engine)
            partial = folder / f"{at}.part"
            with partial.open("wb") as file:
                np.savez(file, **found)
            partial.rename(folder / f"{at}.npz")
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
