"""Python layers: found in the solver's folder, allowed by name from elsewhere, and refused otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from speedo.engines.net_trial import check_in_subprocess
from speedo.engines.pycaffe import PycaffeEngine
from speedo.engines.solver import read_solver, solver_for_worker
from speedo.errors import EngineError, SolverError
from tests.support.nets import SMOOTH, net_text, write_solver
from tests.support.solvers import worker

pytestmark = pytest.mark.caffe

PYTHON_LAYER = """
import caffe
import numpy as np

class Scale(caffe.Layer):
    def setup(self, bottom, top):
        self.factor = float(self.param_str)
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)
    def forward(self, bottom, top):
        if self.factor < 0:
            raise ValueError("factor must be positive, is %g" % self.factor)
        top[0].data[...] = self.factor * bottom[0].data
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = self.factor * top[0].diff
"""


def python_net(factor: str, module: str) -> str:
    layer = f"""
    layer {{ name: "py" type: "Python" bottom: "sig" top: "top"
      python_param {{ module: "{module}" layer: "Scale" param_str: "{factor}" }} }}
    """
    return net_text(SMOOTH.replace('top: "top"', 'top: "sig"') + layer)


def test_python_layers_are_found_in_the_solvers_folder_by_every_rank(home: Path) -> None:
    (home / "scale_a.py").write_text(PYTHON_LAYER)
    spec = read_solver(write_solver(home, python_net("2", "scale_a")))
    assert "Python" in spec.layer_types
    text = solver_for_worker(spec, rank=1, count=3, batch_size=4)
    engine = PycaffeEngine(text, lr_policy=spec.lr_policy, rank=1, count=3, folder=spec.folder)
    assert engine.step(2) > 0


def test_an_exception_in_a_python_layer_is_told_with_its_place(home: Path) -> None:
    (home / "scale_b.py").write_text(PYTHON_LAYER)
    engine = worker(read_solver(write_solver(home, python_net("-1", "scale_b"))))
    with pytest.raises(EngineError, match=r"factor must be positive.*scale_b\.py:12"):
        engine.step(1)


def test_a_python_module_that_fails_to_import_is_told(home: Path) -> None:
    (home / "scale_c.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(EngineError, match="nothing_of_that_name"):
        worker(read_solver(write_solver(home, python_net("1", "scale_c"))))


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python looks into, here and in children, as it does for what is installed."""
    folder = tmp_path_factory.mktemp("installed")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def marking(folder: Path) -> str:
    """A layer whose module leaves a mark when its code runs."""
    return f"open({str(folder / 'ran')!r}, 'w').close()\n" + PYTHON_LAYER


def test_a_module_from_elsewhere_is_refused_before_its_code_runs(
    home: Path, elsewhere: Path
) -> None:
    (elsewhere / "scale_d.py").write_text(marking(home))
    spec = read_solver(write_solver(home, python_net("2", "scale_d")))
    with pytest.raises(
        EngineError, match=r"'scale_d', which is not in .* --python-layers scale_d$"
    ):
        worker(spec)
    assert "scale_d" not in sys.modules
    assert not (home / "ran").exists()


def test_the_standard_library_is_no_home_of_layers(home: Path) -> None:
    spec = read_solver(write_solver(home, python_net("2", "os")))
    with pytest.raises(EngineError, match="'py' names the Python module 'os', which is not in"):
        worker(spec)


@pytest.mark.parametrize("allowed", ["scale_e", "scale_pack", "scale_pack.scale"])
def test_a_module_from_elsewhere_is_taken_if_it_or_its_package_is_allowed(
    home: Path, elsewhere: Path, allowed: str
) -> None:
    (elsewhere / "scale_e.py").write_text(PYTHON_LAYER)
    (elsewhere / "scale_pack").mkdir(exist_ok=True)
    (elsewhere / "scale_pack" / "scale.py").write_text(PYTHON_LAYER)
    module = "scale_e" if allowed == "scale_e" else "scale_pack.scale"
    spec = read_solver(write_solver(home, python_net("2", module)))
    try:
        assert worker(spec, python_layers=(allowed,)).step(1) > 0
        with pytest.raises(EngineError, match="which is not in"):
            worker(spec, python_layers=("scale", "scale_pac", "scale_pack.scal"))
    finally:
        for name in ("scale_e", "scale_pack", "scale_pack.scale"):
            sys.modules.pop(name, None)


def test_a_module_in_a_subfolder_is_taken(home: Path) -> None:
    (home / "own_layers").mkdir()
    (home / "own_layers" / "scale.py").write_text(PYTHON_LAYER)
    assert worker(read_solver(write_solver(home, python_net("2", "own_layers.scale")))).step(1) > 0


def test_a_link_out_of_the_folder_is_not_in_it(home: Path, elsewhere: Path) -> None:
    (elsewhere / "far.py").write_text(marking(home))
    (home / "scale_f.py").symlink_to(elsewhere / "far.py")
    with pytest.raises(EngineError, match="which is not in"):
        worker(read_solver(write_solver(home, python_net("2", "scale_f"))))
    assert not (home / "ran").exists()


def test_the_check_before_a_run_refuses_and_allows_alike(home: Path, elsewhere: Path) -> None:
    (elsewhere / "scale_g.py").write_text(marking(home))
    spec = read_solver(write_solver(home, python_net("2", "scale_g")))
    text = solver_for_worker(spec, rank=0, count=1, batch_size=4)
    with pytest.raises(SolverError, match="allow it with --python-layers scale_g"):
        check_in_subprocess(text, folder=spec.folder)
    assert not (home / "ran").exists()
    facts = check_in_subprocess(text, folder=spec.folder, python_layers=("scale_g",), step=True)
    assert facts.loss is not None
    assert (home / "ran").exists()


@pytest.mark.parametrize("module", ["scale_nowhere", "own_part.scale_nowhere"])
def test_a_module_that_is_not_found_is_told_with_its_remedy(home: Path, module: str) -> None:
    if "." in module:
        (home / "own_part").mkdir()
    with pytest.raises(EngineError) as caught:
        worker(
            read_solver(
                write_solver(home, python_net("1", module), test_iter=None, test_interval=None)
            )
        )
    assert str(caught.value) == (
        f"layer 'py' names the Python module '{module}', which is not found: put it into the solver's folder "
        f"{home} on every node, or install it there and allow it with --python-layers {module}"
    )


def test_a_class_that_is_not_there_is_told_with_module_and_remedy(home: Path) -> None:
    (home / "scale_h.py").write_text("class Scales:\n    pass\n")
    with pytest.raises(EngineError) as caught:
        worker(read_solver(write_solver(home, python_net("1", "scale_h"))))
    assert str(caught.value) == (
        f"layer 'py': the Python module 'scale_h' ({home}/scale_h.py) has no class 'Scale'; "
        "correct python_param, or define the class there"
    )
