"""A net that trains in milliseconds and whose weights need more than one chunk, with a saboteur in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tests.support.nets import net_text, write_data, write_solver

HERE = Path(__file__).parent
BATCH = 8
WIDE = """
layer { name: "wide" type: "InnerProduct" bottom: "data" top: "wide"
  inner_product_param { num_output: 4500 weight_filler { type: "xavier" } } }
"""
SABOTEUR = """
layer { name: "saboteur" type: "Python" bottom: "wide" top: "wide" include { phase: TRAIN }
  python_param { module: "saboteur" layer: "Saboteur" } }
"""
SIGMOID = """
layer { name: "sig" type: "Sigmoid" bottom: "wide" top: "top" }
"""
BODY = WIDE + SABOTEUR + SIGMOID


def write_problem(
    folder: Path,
    data: str | None = None,
    *,
    engine: str = "caffe",
    tested: bool = True,
    **fields: Any,
) -> Path:
    """Databases, net and solver in a new folder; the path of the solver. 1.2 MB of weights.

    With `data` the databases are in a folder of this name in there, and the net has this relative path to them.
    With the engine torch the commands need `environment_of_torch`. A run that is not `tested` starts no tester.
    """
    folder.mkdir()
    place = folder / (data or "")
    place.mkdir(exist_ok=True)
    write_data(place, train=256, test=40)
    if engine == "torch":
        shutil.copy(HERE / "torch_saboteur.py", folder / "sitecustomize.py")
    else:
        shutil.copy(HERE / "saboteur.py", folder)
    body = WIDE + SIGMOID if engine == "torch" else BODY
    named = Path(data) if data is not None else folder
    net = net_text(body, batch=BATCH, train=str(named / "train"), test=str(named / "test"))
    if not tested:
        fields = {"test_iter": None, "test_interval": None, **fields}
    return write_solver(folder, net, base_lr=0.001, **fields)


def environment_of_torch(folder: Path) -> dict[str, str]:
    """What commands need to train this problem with PyTorch, and to obey orders while they do."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"SPEEDO_ENGINE": "torch", "PYTHONPATH": path}


def order(solver: Path, *lines: str) -> None:
    """What the saboteur does from now on: `1 sleep 0.5`."""
    file = solver.with_name("sabotage")
    temporary = file.with_suffix(".new")
    temporary.write_text("".join(f"{line}\n" for line in lines))
    temporary.replace(file)


def slow_down(solver: Path, workers: int, seconds: float = 0.1) -> None:
    """Let workers 0, 1 and so on rest so long in each step: a run that waits for a test takes hardly a core then."""
    order(solver, *(f"{number} sleep {seconds}" for number in range(workers)))
