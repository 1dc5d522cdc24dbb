"""The test nets of a solver, sharing the train net's parameters.

Every evaluation scores the same records: those that a newly built net reads first. So a plain script that loads the
exported model gets the same numbers. A net whose pass ends exactly at the end of its database is reused. Any other is
rebuilt for each evaluation, because Caffe's data layers continue where they stopped.

A test can be shared: each process runs some of the batches, and passes over those before them, which it only reads. The
sums of all shares are those of one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
from google.protobuf import text_format

from caffenets.shared_lmdb import SharedLmdb
from speedo.engines.average_precision import by_class
from speedo.engines.forward_pass import ForwardPass
from speedo.errors import EngineError

# What a DetectionEvaluate layer made of a share: its rows, the form of the average precision, and whether each class
# is reported. It goes through JSON.
Detections = Mapping[str, Any]
# What a share of a test found: of each net the sums of its outputs over the batches, and the number of batches. None
# stands for a sum that is not finite because BatchNorm has no statistics yet.
Part = Sequence[tuple[Mapping[str, float | Detections | None], int]]


@dataclass(frozen=True, slots=True)
class PartOfTest:
    """Part `index` of `count` of a test: this many of the batches of each net, one after another."""

    index: int = 0
    count: int = 1

    def of(self, batches: int) -> range:
        """The batches that are its own, of this many; sizes differ by one at most."""
        return range(self.index * batches // self.count, (self.index + 1) * batches // self.count)


WHOLE: Final = PartOfTest()
# Of an output with more values their mean is reported: ImageNet's accuracies by class are as many; the scores of a
# batch, where no layer reads them, may be millions.
MOST_VALUES: Final = 1000


def names_of(output: str, count: int) -> list[str]:
    """The names of a test output with this many values."""
    single = count == 1 or count > MOST_VALUES
    return [output] if single else [f"{output}/{place}" for place in range(count)]


def combined(parts: Sequence[Part]) -> dict[str, float]:
    """Mean of each output over the batches of all parts, summed in double precision.

    Of boxes it is the mean average precision.
    An output of several values gives `name/0`, `name/1`, ..., one of more than `MOST_VALUES` their mean; names of net
    `k`, from the second, begin with `test{k}/`. NaN stands for an output that is not available before BatchNorm has
    statistics.
    Raises `EngineError` for any other mean that is not finite.
    """
    metrics: dict[str, float] = {}
    for index, shares in enumerate(zip(*parts, strict=True)):
        batches = sum(count for _, count in shares)
        names = dict.fromkeys(name for sums, _ in shares for name in sums)
        prefix = f"test{index}/" if index else ""
        for name in names:
            found = [sums[name] for sums, _ in shares if name in sums]
            boxes = [one for one in found if isinstance(one, Mapping)]
            if boxes:
                metrics |= _precisions(prefix + name, boxes)
                continue
            numbers = [one for one in found if one is not None and not isinstance(one, Mapping)]
            if len(numbers) < len(found):
                metrics[prefix + name] = math.nan
                continue
            value = math.fsum(numbers) / batches
            if not math.isfinite(value):
                raise EngineError(
                    f"the test output {prefix}{name} is {value}: training has diverged; "
                    "lower base_lr or scale the deltas"
                )
            metrics[prefix + name] = value
    return metrics


def known_sums(sums: Mapping[str, float], *, statistics: bool) -> dict[str, float | None]:
    """The sums of a share; `statistics` says whether every BatchNorm layer that uses them has some.

    Without any Caffe divides by the root of eps, which multiplies by 316 at each layer: a deep net overflows. That is
    no divergence, and Caffe continues.
    """
    return {name: one if statistics or math.isfinite(one) else None for name, one in sums.items()}


def uses_statistics(param: Any) -> bool:
    """Whether this layer of a test net normalizes by running sums. Caffe: layers/batch_norm_layer.cpp."""
    own = param.batch_norm_param
    return param.type == "BatchNorm" and (
        own.use_global_stats or not own.HasField("use_global_stats")
    )


def _precisions(name: str, parts: Sequence[Detections]) -> dict[str, float]:
    """The mean average precision under this name, and that of each class if it was asked for."""
    classes = by_class([part["rows"] for part in parts], parts[0]["form"])
    found = {name: fmean(classes.values()) if classes else 0.0}
    if parts[0]["each"]:
        found |= {f"{name}/{label}": value for label, value in classes.items()}
    return found


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
        self._kept: dict[int, tuple[Any, int]] = {}  # each net with the batches that it has read

    def score(
        self,
        take_weights: Callable[[Any], None],
        share: PartOfTest = WHOLE,
        passed: Callable[[int], None] = lambda samples: None,
    ) -> Part:
        """Run a share of `test_iter` batches of each net; `take_weights` gives a net its parameters.

        `passed` is called after every batch with its records.
        """
        return [
            self._score(index, take_weights, share, passed)
            for index in range(len(self._parameters))
        ]

    def outputs(self, train_net: Any) -> tuple[str, ...]:
        """Build every net and share the parameters; the names that a test will give, in its order."""
        names: list[str] = []
        for index, batches in enumerate(self._iterations):
            net = self.build(index)
            net.share_with(train_net)
            if not batches:
                continue
            prefix = f"test{index}/" if index else ""
            for output in net._outputs:
                names += names_of(prefix + net._blob_names[output], net._blobs[output].count)
        return tuple(names)

    def close(self) -> None:
        """Free the nets, and with them their reading threads."""
        self._kept.clear()

    def _score(
        self,
        index: int,
        take_weights: Callable[[Any], None],
        share: PartOfTest,
        passed: Callable[[int], None],
    ) -> tuple[dict[str, float | None], int]:
        iterations = self._iterations[index]
        batches = share.of(iterations)
        sums: dict[str, float] = {}
        if not batches:
            return {}, 0
        # Popped: a pass that fails half way must not leave its net in the middle of the data.
        net, read = self._kept.pop(index) if index in self._kept else (self.build(index), 0)
        take_weights(net)
        forward, samples = ForwardPass(net, self._parameters[index]), samples_of(net)
        for _ in range((batches.start - read) % iterations):
            forward.read()
        scores = _scores(net)
        outputs = [(net._blob_names[i], net._blobs[i], scores.get(i)) for i in net._outputs]
        for _ in batches:
            forward.run()
            for name, blob, judged in outputs:
                data = blob.data.reshape(-1)
                if judged is not None and np.isnan(judged.data).any():
                    data = np.full_like(data, np.nan)
                keys = names_of(name, data.size)
                values = data.tolist() if len(keys) == data.size else [float(data.mean(dtype="d"))]
                for key, value in zip(keys, values, strict=True):
                    sums[key] = sums.get(key, 0.0) + value
            passed(samples)
        if ends_with_the_data(self._parameters[index], iterations):
            self._kept[index] = (net, batches.stop % iterations)
        statistics = _has_statistics(net, self._parameters[index])
        return known_sums(sums, statistics=statistics), len(batches)

    def build(self, index: int) -> Any:
        """A new net, whose data begin with the first record."""
        if self._seed >= 0:
            self._caffe.set_random_seed(self._seed)
        # The constructor overwrites the level of the file's own state (Caffe: net.cpp).
        level = self._parameters[index].state.level
        return self._caffe.Net(str(self._files[index]), self._caffe.TEST, level=level)


def _scores(net: Any) -> dict[int, Any]:
    """By the number of each Accuracy layer's tops its scores: of scores that are NaN Caffe's layer makes 1.0."""
    return {
        top: net._blobs[net._bottom_ids(at)[0]]
        for at, layer in enumerate(net.layers)
        if layer.type == "Accuracy"
        for top in net._top_ids(at)
    }


def _has_statistics(net: Any, parameter: Any) -> bool:
    names = {layer.name for layer in parameter.layer if uses_statistics(layer)}
    return all(
        float(layer.blobs[2].data[0])
        for name, layer in zip(net._layer_names, net.layers, strict=True)
        if name in names and layer.type == "BatchNorm"
    )


def samples_of(net: Any) -> int:
    """Records of a batch: the leading extent of the first layer's first output."""
    tops = net._top_ids(0)
    shape = list(net._blobs[tops[0]].shape) if len(tops) else []
    return int(shape[0]) if shape else 0


def ends_with_the_data(parameter: Any, iterations: int) -> bool:
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
    with SharedLmdb(Path(source)) as environment:
        return int(environment.stat()["entries"])
