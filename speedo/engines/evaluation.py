"""The test nets of a solver, sharing the train net's parameters.

Every evaluation scores the same records: those that a newly built net reads first. So a plain script that loads the
exported model gets the same numbers. A net whose pass ends exactly at the end of its database is reused. Any other is
rebuilt for each evaluation, because Caffe's data layers continue where they stopped.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lmdb
from google.protobuf import text_format

from speedo.errors import EngineError


class TestNets:
    """Test nets: NetParameters in `parameters`, the `test_iter` of each in `iterations`."""

    def __init__(
        self, caffe: Any, parameters: list[Any], iterations: list[int], *, scratch: Path, seed: int
    ) -> None:
        self._caffe = caffe
        self._parameters = parameters
        self._iterations = iterations
        self._seed = seed
        self._files = [scratch / f"test{index}.prototxt" for index in range(len(parameters))]
        for file, parameter in zip(self._files, parameters, strict=True):
            file.write_text(text_format.MessageToString(parameter))
        self._kept: dict[int, Any] = {}

    def evaluate(self, train_net: Any) -> dict[str, float]:
        """Mean of each output over `test_iter` batches, summed in double precision.

        An output of several values gives `name/0`, `name/1`, ...; raises `EngineError` for a mean
        that is not finite.
        """
        metrics: dict[str, float] = {}
        for index in range(len(self._parameters)):
            prefix = f"test{index}/" if index else ""
            for name, value in self._score(index, train_net).items():
                if not math.isfinite(value):
                    raise EngineError(
                        f"the test output {prefix}{name} is {value}: training has diverged; "
                        "lower base_lr or scale the deltas"
                    )
                metrics[prefix + name] = value
        return metrics

    def outputs(self, train_net: Any) -> tuple[str, ...]:
        """Build every net and share the parameters; the names that `evaluate` will give, in its order."""
        names: list[str] = []
        for index in range(len(self._parameters)):
            net = self._build(index)
            net.share_with(train_net)
            prefix = f"test{index}/" if index else ""
            for output in net._outputs:
                count = net._blobs[output].count
                name = prefix + net._blob_names[output]
                names += [name] if count == 1 else [f"{name}/{place}" for place in range(count)]
        return tuple(names)

    def close(self) -> None:
        """Free the nets, and with them their reading threads."""
        self._kept.clear()

    def _score(self, index: int, train_net: Any) -> dict[str, float]:
        # Popped: a pass that fails half way must not leave its net in the middle of the data.
        net = self._kept.pop(index, None) or self._build(index)
        net.share_with(train_net)
        outputs = [(net._blob_names[i], net._blobs[i]) for i in net._outputs]
        sums: dict[str, float] = {}
        last = len(net.layers) - 1
        for _ in range(self._iterations[index]):
            net._forward(0, last)
            for name, blob in outputs:
                values = blob.data.reshape(-1).tolist()
                for place, value in enumerate(values):
                    key = name if len(values) == 1 else f"{name}/{place}"
                    sums[key] = sums.get(key, 0.0) + value
        if _ends_with_the_data(self._parameters[index], self._iterations[index]):
            self._kept[index] = net
        return {name: total / self._iterations[index] for name, total in sums.items()}

    def _build(self, index: int) -> Any:
        if self._seed >= 0:
            self._caffe.set_random_seed(self._seed)
        # The constructor overwrites the level of the file's own state (Caffe: net.cpp).
        level = self._parameters[index].state.level
        return self._caffe.Net(str(self._files[index]), self._caffe.TEST, level=level)


def _ends_with_the_data(parameter: Any, iterations: int) -> bool:
    """Whether `iterations` batches use every record equally often, and no layer draws random numbers."""
    sources = [layer for layer in parameter.layer if not layer.bottom]
    for layer in sources:
        if layer.type != "Data" or layer.data_param.backend != layer.data_param.LMDB:
            return False
        if layer.transform_param.mirror:
            return False
        records = _records(layer.data_param.source)
        if not records or iterations * layer.data_param.batch_size % records:
            return False
    return bool(sources)


def _records(source: str) -> int:
    """Number of records in an LMDB."""
    # Without locks: a second handle's closing would drop the locks that Caffe's own handle holds.
    with lmdb.open(source, readonly=True, lock=False, subdir=Path(source).is_dir()) as environment:
        return int(environment.stat()["entries"])
