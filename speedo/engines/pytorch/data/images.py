"""ImageData: image files of a list. Caffe: layers/image_data_layer.cpp."""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar, Final

import numpy as np

from caffenets.files import read_bytes
from caffenets.layer import Shape
from speedo.data.pixels import Bytes, UnreadablePictureError, decoded
from speedo.engines.pytorch.data.prefetch import Batch
from speedo.engines.pytorch.data.source import BatchSource
from speedo.engines.pytorch.data.transform import Size, Transform
from speedo.engines.record_rules import RecordRule
from speedo.errors import EngineError

_LABEL: Final = re.compile(r"\s*([+-]?\d+)")


class ImageData(BatchSource):
    """Caffe's ImageData layer: tops (N, C, H, W) and labels (N,), float32.

    Like Caffe it does not look at rank and count: a worker's list has its lines alone
    (`speedo.engines.solver.rewrite`). With `shuffle` the lines change their order
    before every epoch, by the place's seed and rank.
    """

    tops: ClassVar[tuple[int, int | None]] = (2, 2)

    @property
    def samples(self) -> int:
        return int(self.param.image_data_param.batch_size)

    def is_costly(self) -> bool:
        """Decoding images takes longer than many a net."""
        return True

    def open(self) -> list[Shape]:
        image, param = self.param.image_data_param, self.param.transform_param
        mean = self.find(param.mean_file, "mean file") if param.mean_file else None
        self._transform = Transform(
            param, self.place.phase, self.refuse, self.draws("transform"), mean
        )
        size = int(image.new_height), int(image.new_width)
        if bool(size[0]) != bool(size[1]):
            raise self.refuse("has only one of new_height and new_width: give both or none")
        self._size = size if all(size) else None
        self._list = self.find(image.source, "list of images")
        self._root = str(image.root_folder)
        self._lines = self._read_list()
        self._rule = RecordRule(
            self.name, str(self._list), True, self._root, self.samples, self._transform.crop,
            self._size, 0, self._transform.mean_shape,
        )  # fmt: skip
        self._order = np.arange(len(self._lines))
        self._shuffles = self.draws("shuffle") if image.shuffle else None
        if self._shuffles is not None:
            self._shuffles.shuffle(self._order)
        self._next = self._first_line(int(image.rand_skip))
        shape: Size = self._image(int(self._order[self._next]), None).shape
        return [(self.samples, *self._transform.window(shape)), (self.samples,)]

    def read(self) -> Batch:
        lines = [self._take_line() for part in self.in_a_row(self.samples) for _ in range(part)]
        leader = self._image(lines[0], None)
        first: Size = leader.shape
        images = [leader, *self.each(lambda line: self._image(line, first), lines[1:])]
        out = self.empty((len(lines), *self._transform.window(first)))
        self._transform.apply(images, out.numpy())
        labels = self.empty((len(lines),))
        labels.numpy()[:] = [self._lines[line][2] for line in lines]
        return [out, labels]

    def pass_over(self, batches: int) -> None:
        records = batches * self.samples
        self._transform.skip(records)
        self._advance(records)

    def seek(self, record: int) -> None:
        self._next = record % len(self._lines)

    def _take_line(self) -> int:
        """The next line's place in the list."""
        line = int(self._order[self._next])
        self._advance(1)
        return line

    def _advance(self, lines: int) -> None:
        """Move on; after the last line the first comes, in a new order if the list is shuffled."""
        epochs, self._next = divmod(self._next + lines, len(self._order))
        if self._shuffles is not None:
            for _ in range(epochs):
                self._shuffles.shuffle(self._order)

    def _first_line(self, most: int) -> int:
        """Where reading begins: at a random line below `rand_skip`."""
        start = int(self.draws("rand_skip").integers(most)) if most else 0
        if start >= len(self._lines):
            raise self.refuse(
                f"has rand_skip {most}, but its list has only {len(self._lines)} lines: use {len(self._lines)} or less"
            )
        return start

    def _read_list(self) -> list[tuple[int, str, int]]:
        """Number, file name and label of each line that is not empty."""
        try:
            text = read_bytes(self._list).decode("utf-8", "surrogateescape")
        except OSError as error:
            raise self.refuse(
                f"needs the list {self._list}, which cannot be read ({error.strerror}): correct source"
            ) from error
        lines = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            name, _, last = line.rpartition(" ")
            label = _LABEL.match(last)
            if not name or label is None:
                raise self._bad(number, line.strip(), "is not `image label`: correct the line")
            lines.append((number, name, int(label[1])))
        if not lines:
            raise self.refuse(
                f"needs the list {self._list}, which is empty: write lines `image label` into it"
            )
        return lines

    def _image(self, line: int, first: Size | None) -> Bytes:
        """The image of a line, (C, H, W); `first` is the shape of the batch's first image."""
        number, name, _ = self._lines[line]
        colors: Any = "color" if self.param.image_data_param.is_color else "gray"
        # Root and name are put together as text, as in Caffe.
        path = os.path.join(self.place.folder or "", self._root + name)
        try:
            with open(path, "rb") as file:
                image = decoded(file.read(), colors, self._size).pixels
        except OSError as error:
            raise self._bad(
                number,
                name,
                f"cannot be read ({path}: {error.strerror}): correct the line or put the image there",
            ) from error
        except UnreadablePictureError as error:
            raise self._bad(number, name, f"{error}: leave it out, or create it again") from error
        shape: Size = image.shape
        problem = self._rule.shape_problem(shape, first or shape)
        if problem is not None:
            raise self._bad(number, name, problem)
        return image

    def _bad(self, number: int, name: str, what: str) -> EngineError:
        shown = f"line {number}: {name}".encode(errors="replace").decode()
        return self.refuse(f"reads the record {shown!r} of {self._list}, which {what}")


LAYERS: Final = (ImageData,)
