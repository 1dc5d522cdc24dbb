"""A host that joins computes with the master's engine, on a device of its own if it was given one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from speedo.actors.join.host_link import Offer
from speedo.engines.make import CAFFE, EngineChoice
from speedo.errors import ConfigError, EngineError


def offer(device: str | None) -> Offer:
    here = Path("/nowhere")
    return Offer("10.0.0.5:56126", 1, here, here, device=device)


@pytest.mark.torch
def test_a_host_has_the_masters_device_or_its_own() -> None:
    master = EngineChoice("torch", "cuda", "bfloat16")
    assert offer(None).engine(master) == master
    assert offer("cpu").engine(master) == EngineChoice("torch", "cpu", "bfloat16")


@pytest.mark.caffe
def test_with_caffe_a_host_has_no_device() -> None:
    assert offer(None).engine(CAFFE) == CAFFE
    with pytest.raises(ConfigError, match="the device is cpu, but the master's engine is caffe"):
        offer("cpu").engine(CAFFE)


def test_a_host_without_the_masters_engine_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(EngineError, match="the engine is torch, but PyTorch is not installed here"):
        offer(None).engine(EngineChoice("torch"))
