"""The scripts in `examples/` train Fashion-MNIST, by themselves and with several workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.script.test_run_command import run
from tests.support.commands import Commands

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.parametrize(
    ("script", "words", "least"),
    [
        ("logistic", ("--mode", "easgd", "--local-steps", "10"), 0.75),
        pytest.param(
            *("convolutional", ("--mode", "async", "--local-steps", "4"), 0.75),
            marks=[pytest.mark.matrix, pytest.mark.torch],
        ),
    ],
)
def test_an_example_trains(
    speedo: Commands, script: str, words: tuple[str, ...], least: float
) -> None:
    status, _, errors = run(speedo, "--workers", "2", *words, str(EXAMPLES / f"{script}.py"))
    assert status == 0, errors
    found = re.search(r"^accuracy (\d\.\d+)$", errors, re.MULTILINE)
    assert found is not None, errors
    assert float(found[1]) > least


def test_they_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert set(lines) == {"fashion_mnist.py", "logistic.py", "convolutional.py"}
    assert max(lines.values()) < 60
