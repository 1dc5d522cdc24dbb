from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bench.support import script_forms
from bench.zoo import CLOSE, MOST_LINES, PART, difference, one_process, read_weights
from tests.run.script.test_run_command import run
from tests.support.commands import Commands

REFUSED = {"lbfgs": "optimizer.step(closure) computes gradients while it steps"}
STEPS = 50


@pytest.mark.parametrize("name", script_forms.names())
def test_a_script_is_short_and_little_of_it_is_for_speedo(name: str) -> None:
    text = (script_forms.SCRIPTS / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 60
    plain = script_forms.plain(name)
    compile(plain, name, "exec")
    assert "speedo" not in plain
    assert not re.search(r"\brun\b", plain)
    unmarked = re.sub(r"  # speedo.*", "", text)
    assert script_forms.differing(plain, unmarked) == script_forms.changed(name) <= MOST_LINES
    for peer in ("ddp", "accelerate"):
        if (theirs := script_forms.by_peer(name, peer)) is not None:
            compile(theirs, name, "exec")
            assert script_forms.differing(plain, theirs) > script_forms.changed(name)


def test_there_are_enough_of_them_and_of_the_others() -> None:
    assert len(script_forms.names()) >= 20
    for peer, least in (("ddp", 6), ("accelerate", 6)):
        files = (script_forms.SCRIPTS / peer).glob("*.diff")
        assert len({file.stem for file in files} & set(script_forms.names())) >= least


def test_a_diff_that_does_not_fit_is_refused() -> None:
    diff = "--- a\n+++ b\n@@ -2,2 +2,2 @@\n b\n-c\n+C\n"
    assert script_forms.patched("a\nb\nc\nd\n", diff) == "a\nb\nC\nd\n"
    with pytest.raises(ValueError, match="line 3 is 'x', not 'c'"):
        script_forms.patched("a\nb\nx\nd\n", diff)


def test_how_far_weights_are_apart_is_of_the_largest() -> None:
    ours, theirs = {"w": np.array([1.0, 4.0])}, {"w": np.array([1.0, 5.0])}
    assert difference(ours, theirs) == pytest.approx(0.2)
    assert difference({}, theirs) == difference({"v": theirs["w"]}, theirs) == np.inf


@pytest.mark.matrix
@pytest.mark.torch
@pytest.mark.ray
@pytest.mark.redis
@pytest.mark.processes
@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("name", script_forms.names())
def test_two_workers_make_the_model_of_one_process(
    speedo: Commands, tmp_path: Path, name: str
) -> None:
    file = script_forms.saved_by(name, tmp_path / "run")
    words = [str(script_forms.SCRIPTS / f"{name}.py"), str(PART), str(STEPS)]
    words += [str(file)] * file.name.endswith(".pt")
    status, _, errors = run(speedo, "--workers", "2", *words)
    if name in REFUSED:
        assert status == 1, errors
        assert REFUSED[name] in errors
        return
    assert status == 0, errors
    alone = one_process(name, STEPS, tmp_path)
    assert not alone.problem
    assert difference(read_weights(file), alone.weights) <= CLOSE
