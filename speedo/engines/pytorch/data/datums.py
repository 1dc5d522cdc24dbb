"""Data: records of an LMDB, in the order of its keys. Caffe: layers/data_layer.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final

import lmdb
import numpy as np
from google.protobuf.message import DecodeError

from caffenets.caffe_schema.caffe_pb2 import Datum
from caffenets.layer import Shape
from caffenets.shared_lmdb import SharedLmdb
from speedo.data.pixels import Colors, UnreadablePictureError, decoded
from speedo.engines.pytorch.data.prefetch import Batch
from speedo.engines.pytorch.data.source import BatchSource
from speedo.engines.pytorch.data.transform import Pixels, Size, Transform
from speedo.engines.record_rules import RecordRule
from speedo.errors import DataError, EngineError

_AGAIN = "create the database again"


class Data(BatchSource):
    """Caffe's Data layer: tops (N, C, H, W) and, if there is a second, labels (N,), float32.

    In TRAIN it gives the records whose running number is `rank` modulo `count`, in TEST all. A LevelDB is read from its
    conversion to an LMDB, since only one process can open it.
    """

    tops: ClassVar[tuple[int, int | None]] = (1, 2)

    _encoded = False
    _database: SharedLmdb | None = None
    _transaction: Any = None

    @property
    def samples(self) -> int:
        return int(self.param.data_param.batch_size)

    def is_costly(self) -> bool:
        """Decoding images takes longer than many a net."""
        return self._encoded or super().is_costly()

    def open(self) -> list[Shape]:
        param = self.param.transform_param
        mean = self.find(param.mean_file, "mean file") if param.mean_file else None
        self._transform = Transform(
            param, self.place.phase, self.refuse, self.draws("transform"), mean
        )
        self._colors: Colors = (
            "color" if param.force_color else "gray" if param.force_gray else "own"
        )
        self._source = self._find_database()
        self._rule = RecordRule(
            self.name, str(self._source), False, "", self.samples, self._transform.crop, None, 0,
            self._transform.mean_shape,
        )  # fmt: skip
        self._cursor = self._open_database()
        self._cursor.first()
        key, value = self._cursor.item()
        first = self.datum_in(key, value)
        self._encoded = bool(first.encoded)
        shape: Size = self.image(key, first, None).shape
        rank, step = (self.place.rank, self.place.count) if self.place.phase == "TRAIN" else (0, 1)
        self._step = step % self._entries
        self._at = 0  # where the cursor is
        # How many records the next one to read is ahead of the cursor.
        self._ahead_by = rank % self._entries
        return self.shapes_of(shape)[: len(self.param.top)]

    def shapes_of(self, first: Size) -> list[Shape]:
        """The shapes of the tops, by that of the first record."""
        return [(self.samples, *self._transform.window(first)), (self.samples,)]

    def read(self) -> Batch:
        keys, values = zip(*self.take(self.samples), strict=True)
        try:
            datums = list(map(Datum.FromString, values))
        except DecodeError:
            datums = list(map(self.datum_in, keys, values))  # which says the key
        records = list(zip(keys, datums, strict=True))
        images, shape = self._images(records)
        out = self.empty((len(records), *self._transform.window(shape)))
        self._transform.apply(images, out.numpy())
        if len(self.param.top) == 1:
            return [out]
        labels = self.empty((len(records),))
        labels.numpy()[:] = [datum.label for _, datum in records]  # 0 if it has none, as in Caffe
        return [out, labels]

    def pass_over(self, batches: int) -> None:
        records = batches * self.samples
        self._ahead_by = (self._ahead_by + records * self._step) % self._entries
        self._transform.skip(records)

    def seek(self, record: int) -> None:
        self._step = 1 % self._entries
        self._ahead_by = (record - self._at) % self._entries

    def release(self) -> None:
        """Close the database, which other layers may still read."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        if self._database is not None:
            self._database.close()
            self._database = None

    def _find_database(self) -> Path:
        data = self.param.data_param
        source = self.find(data.source, "database")
        if data.backend == data.LMDB:
            return source
        from speedo.data.leveldb import converted  # with all that makes datasets: few nets need it

        try:
            return converted(source)
        except DataError as error:
            raise self.refuse(f"reads a LevelDB: {error}") from error

    def _open_database(self) -> Any:
        """A cursor over the database."""
        reads = f"reads {self._source}, which"
        file = self._source / "data.mdb" if self._source.is_dir() else self._source
        if not file.is_file():
            raise self.refuse(f"{reads} is no LMDB: {_AGAIN} or correct source")
        try:
            self._database = SharedLmdb(self._source)
            environment = self._database.environment
            stat, info = environment.stat(), environment.info()
            self._entries = int(stat["entries"])
            if not self._entries:
                raise self.refuse(f"{reads} holds no record: {_AGAIN}")
            if (info["last_pgno"] + 1) * stat["psize"] > file.stat().st_size:
                # LMDB maps the file: a page beyond its end would kill the process.
                raise self.refuse(f"{reads} is cut short: {_AGAIN}, or copy it again")
            self._transaction = environment.begin()
            return self._transaction.cursor()
        except (lmdb.Error, OSError) as error:
            raise self.refuse(f"{reads} cannot be opened ({error}): {_AGAIN}") from error

    def take(self, records: int) -> list[tuple[bytes, bytes]]:
        """Key and value of the shard's next records, after the database's last one from the first again."""
        taken: list[tuple[bytes, bytes]] = []
        forward, item = self._cursor.next, self._cursor.item
        try:
            for part in self.in_a_row(records):
                ahead = self._ahead_by
                self._at = (self._at + ahead + (part - 1) * self._step) % self._entries
                for _ in range(part):
                    for _ in range(ahead):
                        if not forward():
                            self._cursor.first()
                    taken.append(item())
                    ahead = self._step
                self._ahead_by = ahead
        except lmdb.Error as error:
            raise self.refuse(
                f"reads {self._source}, which is damaged ({error}): {_AGAIN}"
            ) from error
        return taken

    def datum_in(self, key: bytes, value: bytes) -> Any:
        """The Datum of a record."""
        return self.parsed(key, value, Datum)

    def parsed(self, key: bytes, value: bytes, kind: Any) -> Any:
        """A record as a message of this kind; raises `EngineError` with its key where it is none."""
        try:
            return kind.FromString(value)
        except DecodeError as error:
            raise self.bad(key, f"is not a {kind.__name__} of Caffe ({error}): {_AGAIN}") from error

    def _images(self, records: list[tuple[bytes, Any]]) -> tuple[Pixels | list[Pixels], Size]:
        """The pixels of a batch, as one array where they have one shape, and the first one's shape."""
        leader = self.image(*records[0], None)
        first: Size = leader.shape
        size = leader.size
        if all(
            len(one.data) == size
            and (one.channels, one.height, one.width) == first
            and not one.encoded
            for _, one in records
        ):
            pixels = np.frombuffer(b"".join([one.data for _, one in records]), np.uint8)
            return pixels.reshape(len(records), *first), first
        rest = self.each(lambda record: self.image(*record, first), records[1:])
        return [leader, *rest], first

    def image(self, key: bytes, datum: Any, first: Size | None) -> Pixels:
        """The pixels of a record, (C, H, W); `first` is the shape of the batch's first record."""
        if datum.encoded:
            try:
                pixels: Pixels = decoded(datum.data, self._colors, in_record=True).pixels
            except UnreadablePictureError as error:
                raise self.bad(key, f"{error}: {_AGAIN} without it") from error
            self._check(key, pixels.shape, first)
            return pixels
        shape = (datum.channels, datum.height, datum.width)
        self._check(key, shape, first)
        size = shape[0] * shape[1] * shape[2]
        # As Caffe takes them: bytes if there are any.
        held = len(datum.data) or len(datum.float_data)
        if held < size:
            raise self.bad(
                key,
                f"holds {held:,} values, but its shape {shape[0]} x {shape[1]} x {shape[2]} needs {size:,}: {_AGAIN}",
            )
        if datum.data:
            return np.frombuffer(datum.data, np.uint8, size).reshape(shape)
        return np.fromiter(datum.float_data, np.float32, size).reshape(shape)

    def _check(self, key: bytes, shape: Size, first: Size | None) -> None:
        problem = self._rule.shape_problem(shape, first or shape)
        if problem is not None:
            raise self.bad(key, problem)

    def bad(self, key: bytes, what: str) -> EngineError:
        """An error about a record; `what` follows `which `."""
        name = key.decode(errors="replace")
        return self.refuse(f"reads the record {name!r} of {self._source}, which {what}")


LAYERS: Final = (Data,)
