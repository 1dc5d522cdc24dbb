"""What the engine does for GPUs, seen without one: what it sets, and that no step reads a value of the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedo.engines.base import Engine
from speedo.engines.make import EngineChoice, make_engine
from speedo.errors import EngineError
from tests.engines.pytorch.test_net import ip, loss
from tests.support.caffe_steps import Constant

pytestmark = pytest.mark.torch

LABELS = """layer {{ name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param {{ shape {{ dim: 3 dim: 8 }} shape {{ dim: 3 }}
  data_filler {{ value: 0.5 }} data_filler {{ value: {label} }} }} }}"""


def engine(label: int, more: str = "") -> Engine:
    net = LABELS.format(label=label) + ip("a", "data", 4) + loss("loss", "a", more)
    text = f'base_lr: 0.01 lr_policy: "fixed" random_seed: 1 train_net_param {{ {net} }}'
    text += f" test_iter: 2 test_net_param {{ {net} }}"
    return make_engine(EngineChoice("torch", device="cpu"), text, lr_policy=Constant())


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caffenets.layer.host_waits", lambda device: False)


@pytest.mark.parametrize("label", [-1, 4, 255])
def test_a_label_without_a_class_is_named_after_the_step_of_a_gpu(
    label: int, as_on_a_gpu: None
) -> None:
    made = engine(label)
    for tried in (lambda: made.step(1), made.evaluate):
        with pytest.raises(EngineError, match=f"'loss'.* read label {label}, but has 4 classes"):
            tried()
    made.close()


def test_an_ignored_label_is_none_without_a_class(as_on_a_gpu: None) -> None:
    made = engine(255, "loss_param { ignore_label: 255 }")
    assert made.step(1) == 0
    made.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that make a host wait for its GPU."""
    import torch

    found: list[str] = []
    for name in ("__float__", "__bool__", "__int__", "item", "tolist"):
        plain = getattr(torch.Tensor, name)

        def noted(self: torch.Tensor, name: str = name, plain: object = plain) -> object:
            found.append(name)
            return plain(self)  # type: ignore[operator]

        monkeypatch.setattr(torch.Tensor, name, noted)
    return found


def test_only_the_end_of_a_step_and_of_a_test_waits_for_a_gpu(
    as_on_a_gpu: None, reads: list[str]
) -> None:
    made = engine(1)
    reads.clear()
    made.step(3)
    assert reads == ["__float__", "tolist"]  # the loss, and the labels' ends
    made.evaluate()
    reads.clear()
    made.evaluate()
    # Two blobs finite; labels, one output
    assert sorted(reads) == [
        "__bool__",
        "__bool__",
        "tolist",
        "tolist",
    ]
    made.close()


def test_clipping_makes_no_tensor_of_a_number(
    monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    """Such a tensor is copied to the GPU, and the host waits for that."""
    import torch

    from speedo.engines.pytorch.updates import ParameterUpdate
    from speedo.engines.solver_update import Multipliers
    from speedo.engines.update_rules import SolverFields
    from speedo.exchange.vector import Blob, Layout

    layout, flat = Layout((Blob("a/0", (2,), False),)), torch.zeros(2)
    fields = SolverFields(type="SGD", clip_gradients=0.5)
    update = ParameterUpdate(fields, layout, [Multipliers()], flat, whole=True)
    gradient = torch.tensor([3.0, 4.0])
    monkeypatch.setattr(torch, "tensor", None)
    reads.clear()
    update.apply([gradient], 1.0)
    assert reads == []
    assert flat.numpy() == pytest.approx([-0.3, -0.4])


def test_float32_of_a_gpu_is_float32_and_every_process_sets_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from speedo.engines.pytorch import devices

    chosen: list[str] = []
    monkeypatch.setattr(devices, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(str(device)))
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    try:
        devices.use_device("cuda:1")
        assert chosen == ["cuda:1"]
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:  # PyTorch's own
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False


def test_a_scorer_uses_its_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    from speedo.engines.pytorch import scoring

    asked: list[str] = []

    def use(device: str) -> torch.device:
        asked.append(device)
        return torch.device("cpu")

    monkeypatch.setattr(scoring, "use_device", use)
    scoring.Scorer("", folder=tmp_path, device="cuda:1")
    assert asked == ["cuda:1"]
