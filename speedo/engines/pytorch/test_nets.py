"""The test nets of a solver in PyTorch; what they promise is in `speedo.engines.evaluation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from speedo.engines.average_precision import USUAL
from speedo.engines.evaluation import (
    WHOLE,
    Detections,
    Part,
    PartOfTest,
    ends_with_the_data,
    known_sums,
    names_of,
)
from speedo.engines.pytorch.net import Net


class TestNets:
    """Test nets: NetParameters in `parameters`, the `test_iter` of each in `iterations`.

    `precision` is what a forward pass runs in: a context. Their random numbers do not change those of training. `form`
    is that of the average precision of boxes (`speedo.engines.average_precision`), `each_class` asks for each class.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        iterations: Sequence[int],
        *,
        seed: int,
        device: torch.device,
        folder: Path | None = None,
        precision: Callable[[], Any],
        channels_last: bool,
        form: str = USUAL,
        each_class: bool = False,
    ) -> None:
        self._parameters, self._iterations = list(parameters), list(iterations)
        self._seed, self._device, self._folder = seed, device, folder
        self._precision, self._channels_last = precision, channels_last
        self._judging = {"form": form, "each": each_class}
        self._kept: dict[int, tuple[Net, int]] = {}  # each net with the batches that it has read

    def score(
        self,
        share_from: Net | None,
        share: PartOfTest = WHOLE,
        *,
        take_weights: Callable[[Net], None] = lambda net: None,
        passed: Callable[[int], None] = lambda samples: None,
    ) -> Part:
        """Run a share of `test_iter` batches of each net with the parameters of `share_from`.

        Without it `take_weights` gives a net its own. `passed` is called after every batch with its records.
        """
        with self._apart():
            return [
                self._score(index, share_from, share, take_weights, passed)
                for index in range(len(self._parameters))
            ]

    def outputs(self, share_from: Net) -> tuple[str, ...]:
        """Build every net; the names that a test will give, in its order."""
        names: list[str] = []
        with self._apart():
            for index, batches in enumerate(self._iterations):
                net = self.build(index, share_from)
                prefix = f"test{index}/" if index else ""
                for output, shape in net.outputs.items() if batches else ():
                    boxes = output in net.judged_boxes
                    names += names_of(prefix + output, 1 if boxes else torch.Size(shape).numel())
                net.close()
        return tuple(names)

    def close(self) -> None:
        """Free the nets and end their reading threads."""
        for net, _ in self._kept.values():
            net.close()
        self._kept.clear()

    def build(self, index: int, share_from: Net | None) -> Net:
        """A new net, whose data begin with the first record."""
        if self._seed >= 0:
            torch.manual_seed(self._seed)
        return Net(
            self._parameters[index],
            "TEST",
            seed=self._seed if self._seed >= 0 else None,
            folder=self._folder,
            device=self._device,
            share=share_from,
            channels_last=self._channels_last,
        )

    def _score(
        self,
        index: int,
        share_from: Net | None,
        share: PartOfTest,
        take_weights: Callable[[Net], None],
        passed: Callable[[int], None],
    ) -> tuple[dict[str, float | Detections | None], int]:
        iterations = self._iterations[index]
        batches = share.of(iterations)
        sums: dict[tuple[str, ...], Tensor] = {}
        boxes: dict[str, list[list[float]]] = {}
        if not batches:
            return {}, 0
        # Popped: a pass that fails half way must not leave its net in the middle of the data.
        kept = self._kept.pop(index, None)
        net, read = kept if kept is not None else (self.build(index, share_from), 0)
        try:
            take_weights(net)
            net.skip((batches.start - read) % iterations)
            for _ in batches:
                with self._precision():
                    _, outputs = net.forward()
                # Added up where they are: to read them would make the host wait for a GPU at each batch.
                for name, output in outputs.items():
                    if name in net.judged_boxes:
                        boxes.setdefault(name, []).extend(output.reshape(-1, 5).tolist())
                        continue
                    values = output.float().reshape(-1).double()
                    keys = tuple(names_of(name, values.numel()))
                    if len(keys) < values.numel():
                        values = values.mean().reshape(1)
                    sums[keys] = sums[keys] + values if keys in sums else values
                passed(net.batch)
            net.check_indices()
            statistics = net.has_statistics
        except BaseException:
            net.close()
            raise
        if ends_with_the_data(self._parameters[index], iterations):
            self._kept[index] = (net, batches.stop % iterations)
        else:
            net.close()
        found: dict[str, float] = {}
        # Below a Filter layer an output has other sizes in other batches.
        for keys, total in sums.items():
            for key, value in zip(keys, total.tolist(), strict=True):
                found[key] = found.get(key, 0.0) + value
        judged = {name: {**self._judging, "rows": rows} for name, rows in boxes.items()}
        return {**known_sums(found, statistics=statistics), **judged}, len(batches)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.no_grad():
            yield
