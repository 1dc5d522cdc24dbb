"""The test nets of a solver, given the weights of one model after another: `speedo test` with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from google.protobuf import text_format

from speedo.engines.caffe_schema import caffe_pb2
from speedo.engines.evaluation import Part, Share
from speedo.engines.pytorch.devices import use_device
from speedo.engines.pytorch.engine import copy_model
from speedo.engines.pytorch.net import Net
from speedo.engines.pytorch.test_nets import TestNets
from speedo.errors import EngineError, SolverError
from speedo.exchange.vector import Vector

Check = Callable[[Path, str, int, Vector], None]


class Scorer:
    """The test nets of the text of a SolverParameter, on this device, in float32.

    Every blob holds `untouched` before weights are loaded; then `check` is given the file, layer, index and values.
    """

    def __init__(
        self, solver_text: str, *, folder: Path, device: str, untouched: float, check: Check
    ) -> None:
        self._untouched, self._check = untouched, check
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

    def score(self, weights: Path, share: Share, passed: Callable[[int], None]) -> Part:
        """This share of the test of a model; `passed` is called after every batch with its records.

        Raises `SolverError` for weights that lack values, or hold NaN or infinity.
        """
        return self._nets.score(
            None,
            share,
            take_weights=lambda net: load_checked(weights, net, self._untouched, self._check),
            passed=passed,
        )


def load_checked(weights: Path, net: Net, untouched: float, check: Check) -> None:
    """Load weights into a net. Raises `SolverError` for weights that do not fit, or do not pass `check`."""
    for _, blobs in net.blobs_of_layers():
        for blob in blobs:
            blob.fill_(untouched)
    try:
        copy_model(weights, net)
    except EngineError as error:
        raise SolverError(f"weights {error}") from error
    for name, blobs in net.blobs_of_layers():
        for index, blob in enumerate(blobs):
            check(weights, name, index, blob.cpu().numpy())
