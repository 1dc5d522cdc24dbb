"""What PyTorch saves is read without it, in both of its forms, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caffenets.weight_files.state_dict import read_state_dict


@pytest.mark.torch
@pytest.mark.parametrize("new", [True, False], ids=["archive", "before 1.6"])
def test_tensors_of_every_kind_are_read_as_pytorch_has_them(tmp_path: Path, new: bool) -> None:
    import torch

    own = torch.randn(3, 4)
    tensors = {
        "plain": own,
        "tied": own,
        "turned": own.t(),
        "part": torch.randn(10)[2:7],
        "channels_last": torch.randn(3, 4, 5, 5).to(memory_format=torch.channels_last),
        "half": torch.randn(7).half(),
        "bfloat16": torch.randn(7).bfloat16(),
        "double": torch.randn(2).double(),
        "scalar": torch.tensor(1.5),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "nothing": torch.zeros(0, 3),
        "counter": torch.tensor(3),
    }
    file = tmp_path / "state.pt"
    torch.save(tensors, file, _use_new_zipfile_serialization=new)
    found = read_state_dict(file)
    assert found.keys() == tensors.keys() - {"counter"}
    for name, one in found.items():
        values = one.read()
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, tensors[name].detach().float().numpy(), name)
    assert found["tied"] is found["plain"]


@pytest.mark.torch
@pytest.mark.parametrize("new", [True, False], ids=["archive", "before 1.6"])
def test_the_state_of_a_module_is_read(tmp_path: Path, new: bool) -> None:
    import torch

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.LSTM(4, 5)
    )
    torch.save(net.state_dict(), tmp_path / "net.pt", _use_new_zipfile_serialization=new)
    found = read_state_dict(tmp_path / "net.pt")
    expected = {n: one for n, one in net.state_dict().items() if one.is_floating_point()}
    assert {n: one.read().tobytes() for n, one in found.items()} == {
        n: one.numpy().tobytes() for n, one in expected.items()
    }
