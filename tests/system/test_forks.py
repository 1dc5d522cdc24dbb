"""Forks that stand for Python's processes."""

from __future__ import annotations

import subprocess

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.caffe]


def test_each_draws_names_of_its_own(forked_python: str) -> None:
    words = [forked_python, "-c", "import ray; print(ray.ObjectID.from_random().hex())"]
    names = {subprocess.check_output(words, text=True) for _ in range(3)}
    assert len(names) == 3
