"""The scripts in `examples/` train Fashion-MNIST, by themselves and with several workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.script.test_run_command import run
from tests.support.commands import Commands

EXAMPLES = Path(__file__).parents[3] / "examples"


OPTIONS = {
    "sync": ("--mode", "sync"),
    "async": ("--mode", "async", "--local-steps", "4"),
    "partial": ("--mode", "partial", "--local-steps", "4"),
    "weed-out": ("--mode", "weed-out", "--local-steps", "4"),
    "easgd": ("--mode", "easgd", "--local-steps", "10"),
    "hybrid": ("--mode", "hybrid", "--phase", "sync:200", "--phase", "easgd,local_steps=10"),
}
OFTEN = ("logistic", "easgd", 2)  # in the default suite
LEAST = {"logistic": 0.75, "convolutional": 0.72}


def runs() -> Iterator[object]:
    for script in LEAST:
        for mode in OPTIONS:
            for workers in (2, 4):
                marks = [] if (script, mode, workers) == OFTEN else [pytest.mark.matrix]
                marks += [pytest.mark.torch] if script == "convolutional" else []
                yield pytest.param(script, mode, workers, marks=marks)


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.parametrize(("script", "mode", "workers"), list(runs()))
def test_an_example_trains(speedo: Commands, script: str, mode: str, workers: int) -> None:
    words = ("--workers", str(workers), *OPTIONS[mode], str(EXAMPLES / f"{script}.py"))
    status, _, errors = run(speedo, *words)
    assert status == 0, errors
    found = re.search(r"^accuracy (\d\.\d+)$", errors, re.MULTILINE)
    assert found is not None, errors
    print(script, mode, workers, "accuracy", found[1])
    assert float(found[1]) > LEAST[script]


def test_they_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert set(lines) == {"fashion_mnist.py", "logistic.py", "convolutional.py"}
    assert max(lines.values()) < 60
