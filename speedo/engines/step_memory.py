"""The memory that a training step takes, layer by layer, and what of it is left if a batch goes through in parts."""

from __future__ import annotations

from dataclasses import dataclass

from speedo.exchange.vector import Layout


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Bytes of one layer.

    `parameters` are its weights, their gradients and what the solver keeps of them; those that layers share are at the
    first one. `values` grow with the records that go through at a time: what the layer makes and the backward pass
    reads. `workspace` does not: the batches that a data layer holds, the columns of a convolution of Caffe.
    """

    name: str
    type: str
    parameters: int = 0
    values: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.values + self.workspace


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes of a step whose batches have `batch` records.

    `passing` are gradients of values: the most that there are at a time, beyond the `values` that are not yet freed.
    """

    layers: tuple[LayerMemory, ...]
    passing: int
    batch: int

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def values(self) -> int:
        return sum(layer.values for layer in self.layers)

    @property
    def workspace(self) -> int:
        return sum(layer.workspace for layer in self.layers)

    @property
    def total(self) -> int:
        """Of a step whose batches go through whole."""
        return self.parameters + self.workspace + self.values + self.passing

    def of_parts(self, records: int) -> int:
        """The same with batches that go through in parts of this many records."""
        whole = self.values + self.passing
        part = whole if records >= self.batch else -(-whole * records // self.batch)
        return self.parameters + self.workspace + part

    def largest_part(self, room: float) -> int:
        """The batch, halved until a step takes no more than `room` bytes; 0 where one record takes more."""
        records = self.batch
        while records > 1 and self.of_parts(records) > room:
            records = -(-records // 2)
        return records if self.of_parts(records) <= room else 0


def bytes_of_blobs(layout: Layout) -> dict[str, int]:
    """By the name of each layer the bytes of the blobs that it owns."""
    found: dict[str, int] = {}
    for blob in layout.blobs:
        layer = blob.name.rpartition("/")[0]
        found[layer] = found.get(layer, 0) + 4 * blob.size
    return found
