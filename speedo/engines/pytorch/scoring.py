"""Weights of a file for a net; the test nets of a solver, with one model after another, for `speedo test`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from google.protobuf import text_format
from torch import Tensor

from caffenets.caffe_schema import caffe_pb2
from speedo.engines.evaluation import Part, PartOfTest
from speedo.engines.pytorch.devices import use_device
from speedo.engines.pytorch.net import Net
from speedo.engines.pytorch.test_nets import TestNets
from speedo.engines.weights_check import NetBlobs, blobs_of, load_to_score
from speedo.exchange.vector import Vector


class Scorer:
    """The test nets of the text of a SolverParameter, on this device, in float32."""

    def __init__(self, solver_text: str, *, folder: Path, device: str) -> None:
        torch.set_num_threads(1)
        parameter: Any = caffe_pb2.SolverParameter()
        text_format.Parse(solver_text, parameter)
        self._nets = TestNets(
            list(parameter.test_net_param),
            list(parameter.test_iter),
            seed=int(parameter.random_seed),
            device=use_device(device),
            folder=folder,
            precision=nullcontext,
            channels_last=device == "cpu",
            form=parameter.ap_version,
            each_class=parameter.show_per_class_result,
        )

    def score(self, weights: Path, share: PartOfTest, passed: Callable[[int], None]) -> Part:
        """This share of the test of a model; `passed` is called after every batch with its records.

        Raises `SolverError` for weights that lack values, or hold NaN or infinity.
        """
        return self._nets.score(
            None,
            share,
            take_weights=lambda net: load_to_score(weights, *net_blobs(net)),
            passed=passed,
        )


def net_blobs(net: Net) -> tuple[NetBlobs, list[str]]:
    """The blobs of a net, and the names of its layers."""
    layers = list(net.blobs_of_layers())
    return blobs_of(layers, Tensor.data_ptr, _write), [name for name, _ in layers]


def _write(blob: Tensor, values: Vector) -> None:
    blob.copy_(torch.from_numpy(values.copy()))  # what a file holds is not writable
