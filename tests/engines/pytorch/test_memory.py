"""What the engine says where PyTorch finds no memory, which on a CPU is an error like any other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from speedo.engines.solver import read_solver, solver_for_tester
from speedo.errors import EngineError
from tests.support.nets import net_text, write_data, write_solver

pytestmark = [pytest.mark.torch, pytest.mark.caffe]
TOO_MANY = 1 << 45  # floats: more than the address space of a process


def test_lack_of_memory_on_a_cpu_is_told_from_other_failures() -> None:
    import torch

    from speedo.engines.pytorch.memory import is_lack_of_memory

    with pytest.raises(RuntimeError) as lack:
        torch.empty(TOO_MANY)
    assert is_lack_of_memory(lack.value)
    with pytest.raises(RuntimeError) as other:
        torch.empty(2).reshape(3)
    assert not is_lack_of_memory(other.value)


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_what_the_libraries_of_a_gpu_say_is_lack_of_memory(said: str) -> None:
    from speedo.engines.pytorch.memory import is_lack_of_memory

    assert is_lack_of_memory(RuntimeError(said))


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (
            "forward",
            r"layer 'sig' \(Sigmoid\) found too little memory .*: use --engine torch,micro_batch=auto, or",
        ),
        (
            "backward",
            "cpu has too little memory: use --engine torch,micro_batch=auto, or fewer workers on it",
        ),
    ],
)
def test_a_step_that_finds_no_memory_says_what_to_do(
    where: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from speedo.engines.pytorch.engine import PytorchEngine

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(context: object, bottom: torch.Tensor) -> torch.Tensor:
            return bottom.new_empty(TOO_MANY) if where == "forward" else bottom.view_as(bottom)

        @staticmethod
        def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.new_empty(TOO_MANY)

    write_data(tmp_path)
    spec = read_solver(write_solver(tmp_path, net_text()))
    text = solver_for_tester(spec)
    monkeypatch.setattr(torch, "sigmoid", Greedy.apply)
    engine = PytorchEngine(text, lr_policy=spec.lr_policy, folder=spec.folder)
    with closing(engine), pytest.raises(EngineError, match=says):
        engine.step(1)
