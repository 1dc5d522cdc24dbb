"""The learnable blobs of a Caffe net as one flat vector; a shared parameter is in it once."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import numpy as np

from speedo.exchange.vector import Blob, Layout, Vector


class Parameters:
    """The parameter blobs of `net` in net order, with the layout that they have in a vector.

    A blob that several layers share is held once, under its owner's name: Caffe lets the others
    point at the same memory (Caffe: net.cpp, AppendParam and ShareWeights).
    """

    def __init__(self, net: Any) -> None:
        names: list[Blob] = []
        self._blobs: list[Any] = []
        users: dict[int, int] = {}  # of the memory at an address, among the blobs
        first: list[int] = []
        for at, (name, layer) in enumerate(zip(net._layer_names, net.layers, strict=True)):
            for index, blob in enumerate(layer.blobs):
                address = blob.data.ctypes.data
                users[address] = users.get(address, 0) + 1
                if users[address] > 1:
                    continue
                shape = tuple(int(extent) for extent in blob.shape)
                names.append(Blob(f"{name}/{index}", shape, layer.type == "BatchNorm"))
                self._blobs.append(blob)
                first.append(at)
        self.layout = Layout(tuple(names))
        self._places = [place for _, place in self.layout.slices()]
        self._of_layers: dict[int, list[int]] = {}
        for number, at in enumerate(first):
            self._of_layers.setdefault(at, []).append(number)
        self._users = [users[blob.data.ctypes.data] for blob in self._blobs]
        self._statistics = [
            (blob, place)
            for blob, (named, place) in zip(self._blobs, self.layout.slices(), strict=True)
            if named.statistic
        ]

    # `blob.data` is asked for again at every use: it is what tells Caffe that the memory of the host
    # is the newest, and it costs a microsecond.

    def read(self, out: Vector) -> None:
        """Copy the weights into `out`."""
        for blob, place in zip(self._blobs, self._places, strict=True):
            out[place] = blob.data.reshape(-1)

    def write(self, vector: Vector) -> None:
        """Copy `vector` into the weights."""
        for blob, place in zip(self._blobs, self._places, strict=True):
            blob.data.reshape(-1)[:] = vector[place]

    @property
    def layers(self) -> Sequence[int]:
        """The layers that own blobs, the last one first: so they finish in a backward pass.

        A shared blob is complete with its owner, which is the first of its layers.
        """
        return sorted(self._of_layers, reverse=True)

    def own_weights(self) -> dict[int, slice]:
        """By layer, the place of its first blob, where no other layer shares that."""
        first = {at: numbers[0] for at, numbers in self._of_layers.items()}
        return {
            at: self._places[one]
            for at, one in first.items()
            if self._users[one] == 1 and self.layout.blobs[one].name.endswith("/0")
        }

    def read_gradient(
        self, layer: int, out: Vector, divisor: int, without: Container[int]
    ) -> Iterator[slice]:
        """Copy the gradients of a layer's own blobs, divided by `divisor`, into `out`; their places, one by one.

        Running sums have none, and are left alone, as are the places that begin at `without`.
        """
        for number in self._of_layers[layer]:
            place = self._places[number]
            if not self.layout.blobs[number].statistic and place.start not in without:
                diff = self._blobs[number].diff.reshape(-1)
                np.divide(diff, np.float32(divisor), out=out[place])
            yield place

    def write_gradient(self, vector: Vector, factor: int) -> None:
        """Copy `vector`, times `factor`, into the gradients; running sums have none, and count in no norm."""
        for blob, (named, place) in zip(self._blobs, self.layout.slices(), strict=True):
            own = blob.diff.reshape(-1)
            if named.statistic:
                own.fill(0.0)
            else:
                np.multiply(vector[place], np.float32(factor), out=own)

    def scale_gradient(self, divisor: int) -> None:
        """Divide the gradients."""
        if divisor != 1:
            for blob in self._blobs:
                blob.diff[...] *= np.float32(1.0 / divisor)

    def change(self, change: Callable[[Blob, slice, Vector], None]) -> None:
        """Call `change(blob, place, weights)` for every blob, with its own memory."""
        for blob, (named, place) in zip(self._blobs, self.layout.slices(), strict=True):
            change(named, place, blob.data.reshape(-1))

    def take_update(self, delta: Vector, *, onto: bool) -> None:
        """Set `delta` to the solver's latest update, which it left in the gradients, or add that to it.

        This is exactly what Caffe subtracted (Caffe: blob.cpp, Update); the difference of the weights would be rounded.
        """
        for blob, place in zip(self._blobs, self._places, strict=True):
            if onto:
                delta[place] -= blob.diff.reshape(-1)
            else:
                np.negative(blob.diff.reshape(-1), out=delta[place])

    def read_statistics(self) -> list[Vector]:
        """A copy of each of BatchNorm's running sums."""
        return [blob.data.reshape(-1).copy() for blob, _ in self._statistics]

    def take_statistics_change(self, before: list[Vector], out: Vector) -> None:
        """Write the change of the running sums since `before` to their places in `out`, and undo it."""
        for (blob, place), former in zip(self._statistics, before, strict=True):
            own = blob.data.reshape(-1)
            np.subtract(own, former, out=out[place])
            own[:] = former

    def add_statistics_change(self, before: list[Vector], delta: Vector) -> None:
        """Add the change of the running sums since `before` to their places in `delta`."""
        for (blob, place), former in zip(self._statistics, before, strict=True):
            delta[place] += blob.data.reshape(-1) - former

    def add_statistics(self, vector: Vector) -> None:
        """Add the values at their places in `vector` to the running sums."""
        for blob, place in self._statistics:
            blob.data.reshape(-1)[:] += vector[place]

    def are_finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        return all(bool(np.isfinite(blob.data).all()) for blob in self._blobs)
