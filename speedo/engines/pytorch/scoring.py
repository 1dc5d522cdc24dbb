"""Weights of a file for a net; the test nets of a solver, with one model after another, for `speedo test`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf import text_format
from torch import Tensor

from speedo.engines.caffe_schema import caffe_pb2
from speedo.engines.evaluation import Part, Share
from speedo.engines.pytorch.devices import use_device
from speedo.engines.pytorch.model_files import matched, read_model
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


def copy_model(path: Path, net: Net) -> None:
    """Copy the parameters of a `.caffemodel` or `.caffemodel.h5` into those layers of the net that have their names.

    Of several layers of one name the first has them, as in Caffe (net.cpp, CopyTrainedLayersFrom). Raises
    `EngineError`, and changes nothing, where a shape differs.
    """
    blobs: dict[tuple[str, int], Tensor] = {}
    shared: set[tuple[str, int]] = set()
    seen: set[int] = set()
    names = []
    for name, tensors in net.blobs_of_layers():
        is_first = name not in names
        names.append(name)
        for index, tensor in enumerate(tensors if is_first else ()):
            blobs[name, index] = tensor
            if tensor.data_ptr() in seen:
                shared.add((name, index))
            seen.add(tensor.data_ptr())
    shapes = [(*key, tuple(tensor.shape)) for key, tensor in blobs.items()]
    found = matched(read_model(path), shapes, layers=names, shared=shared)
    for key, values in found.items():
        blobs[key].copy_(torch.from_numpy(np.array(values, np.float32)))
