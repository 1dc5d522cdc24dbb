"""A new mode, rule, codec, exporter, doctor's check or layer is one file: it is found by what it declares."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from caffenets.declared import declared_in


@pytest.mark.parametrize(
    ("package", "word"),
    [
        ("speedo.sgd_modes", "MODE"),
        ("speedo.sgd_modes.rules", "RULE"),
        ("speedo.exchange.codecs", "CODEC"),
        ("speedo.watch.export", "EXPORT"),
        ("speedo.study.doctor.checks", "CHECKS"),
        ("caffenets.layers", "LAYERS"),
        pytest.param("speedo.engines.pytorch.data", "LAYERS", marks=pytest.mark.torch),
    ],
)
def test_a_new_file_is_found_beside_those_that_are_there(
    package: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(declared_in(package, word))
    (tmp_path / "found_in_test.py").write_text(f"{word} = 'new'\n")
    (tmp_path / "helper_in_test.py").write_text("OTHER = 1\n")
    module = importlib.import_module(package)
    monkeypatch.setattr(module, "__path__", [*module.__path__, str(tmp_path)])
    assert before
    assert list(declared_in(package, word)) == [*before, "new"]
