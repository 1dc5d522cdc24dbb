"""The center takes nothing in that could spoil it, and leaves nothing behind that nobody needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from speedo.errors import FencedError, MissingKeyError, PayloadError
from speedo.exchange.codecs import NO_COMPRESSION, Compression, make_codec
from speedo.exchange.served_vectors import Exchange, Sender, Stores
from speedo.exchange.transfer import fetch_vector
from speedo.exchange.vector import HEADER_BYTES, Blob, Layout, Vector, header_for
from speedo.master.center import Center
from speedo.messages import Drop, Kind, Merge, Part, Refused, Trained
from speedo.sgd_modes.rules import AddDelta, Elastic
from speedo.storage import keys
from speedo.storage.base import Arrived, Store
from speedo.storage.memory_store import MemoryStore
from speedo.storage.shared_memory.store import SharedMemoryStore
from speedo.storage.tiered_store import TieredStore

LAYOUT = Layout((Blob("w/0", (4,)),))
RULE = AddDelta(1.0)
EVENT = Trained(2, 1, 5, 0.5, 10)
KEY = keys.payload("run", 2, 5)


def make_center(epoch: int = 0, compression: Compression = NO_COMPRESSION) -> Center:
    center = Center(
        "run", LAYOUT.zeros(), LAYOUT, MemoryStore(), epoch=epoch, compression=compression
    )
    center.publish()
    return center


def send(
    center: Center,
    vector: Vector,
    *,
    layout: Layout = LAYOUT,
    kind: Kind = Kind.DELTA,
    flip: bool = False,
    worker: int = 2,
    incarnation: int = 1,
    ticket: int = 5,
    epoch: int = 0,
    compress: str = "none",
    key: str = KEY,
) -> None:
    """What worker 2 publishes for ticket 5."""
    codec = make_codec(compress, layout)
    body = codec.encode(vector)
    header = header_for(
        body, layout, kind, version=0, dtype=codec.dtype,
        worker=worker, incarnation=incarnation, ticket=ticket, epoch=epoch,
    )  # fmt: skip
    if flip:
        body[3] ^= 1
    center.store.write(key, header.pack(), body)


def ones() -> Vector:
    return np.ones(4, np.float32)


def merge(version: int = 1, ticket: int = 5) -> Merge:
    return Merge(version, 1, 10, 1.0, (Part(2, 1, ticket, 10, 0, 0.5),))


def published(center: Center) -> list[str]:
    """What is left once the center has tidied up, as it does when nobody waits for it."""
    center.tidy()
    return [key.removeprefix("speedo:run:") for key in center.store.keys("speedo:run:")]


def test_a_good_payload_stays_in_the_store_until_it_is_merged() -> None:
    """A master that takes over in the middle of a round takes in once more what this one had received."""
    center = make_center()
    send(center, ones())
    assert center.receive(EVENT, RULE) is None
    assert len(published(center)) == 2
    center.merge(merge(), 0)
    center.tidy()
    np.testing.assert_array_equal(center.vector, [1, 1, 1, 1])
    assert (center.version, published(center)) == (1, ["center:1"])


@pytest.mark.parametrize(
    ("value", "words"),
    [(np.nan, "not finite"), (np.inf, "not finite"), (-np.inf, "not finite"), (1e30, "not finite")],
)
def test_numbers_that_would_spoil_the_center_are_refused(value: float, words: str) -> None:
    center = make_center()
    vector = ones()
    vector[2] = value
    send(center, vector)
    refused = center.receive(EVENT, RULE)
    assert isinstance(refused, Refused)
    assert words in refused.reason
    assert published(center) == ["center:0"]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_refused_with_its_payload(loss: float) -> None:
    center = make_center()
    send(center, ones())
    assert isinstance(center.receive(Trained(2, 1, 5, loss, 10), RULE), Refused)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": Kind.WEIGHTS}, "a weights where a delta was expected"),
        ({"flip": True}, "the checksum differs"),
        ({"layout": Layout((Blob("v/0", (4,)),))}, "parameters of another net"),
        ({"worker": 3}, "was written by another turn (3, 1, 5, 0)"),
        ({"incarnation": 2}, "was written by another turn (2, 2, 5, 0)"),
        ({"ticket": 6}, "was written by another turn (2, 1, 6, 0)"),
        ({"epoch": 1}, "was written by another turn (2, 1, 5, 1)"),
    ],
)
def test_a_payload_that_is_not_this_turns_is_refused(change: dict[str, object], words: str) -> None:
    center = make_center()
    send(center, ones(), **change)  # type: ignore[arg-type]
    refused = center.receive(EVENT, RULE)
    assert isinstance(refused, Refused)
    assert words in refused.reason
    assert published(center) == ["center:0"]


def test_a_payload_of_another_length_is_refused() -> None:
    center = make_center()
    send(center, np.ones(5, np.float32), layout=Layout((Blob("w/0", (5,)),)))
    refused = center.receive(EVENT, RULE)
    assert isinstance(refused, Refused)
    assert "20 bytes, 16 were expected" in refused.reason


def test_a_payload_that_is_not_there_is_refused() -> None:
    refused = make_center().receive(EVENT, RULE)
    assert refused == Refused(2, 1, 5, f"{KEY} is not in this process's memory", blame=False)


def test_weights_are_taken_where_the_rule_wants_weights() -> None:
    center = make_center()
    send(center, ones(), kind=Kind.WEIGHTS)
    assert center.receive(EVENT, Elastic(0.5)) is None


def test_a_refused_vector_leaves_no_trace_in_the_next() -> None:
    """Vectors are used again; a NaN in one must not come back."""
    center = make_center()
    send(center, np.full(4, np.nan, np.float32))
    center.receive(EVENT, RULE)
    send(center, ones())
    center.receive(EVENT, RULE)
    center.merge(merge(), 0)
    np.testing.assert_array_equal(center.vector, [1, 1, 1, 1])


def test_a_late_repetition_leaves_the_held_result_alone() -> None:
    center = make_center()
    send(center, ones())
    center.receive(EVENT, RULE)
    center.drop(Drop(2, 1, 5, "late", "its ticket is not outstanding"))
    center.merge(merge(), 0)
    assert center.version == 1


def test_a_payload_that_is_held_where_it_lies_outlasts_its_late_repetition(tmp_path: Path) -> None:
    """The file of a deleted payload is taken for the next one, which must not be merged in its place."""
    layout = Layout((Blob("w/0", (50_000,)),))
    store = SharedMemoryStore(tmp_path)
    center = Center("run", layout.zeros(), layout, store)
    center.publish()
    send(center, np.full(50_000, 2.0, np.float32), layout=layout)
    assert center.receive(EVENT, RULE) is None
    center.drop(Drop(2, 1, 5, "late", "its ticket is not outstanding"))
    center.tidy()
    other = SharedMemoryStore(tmp_path)
    other.write(keys.payload("run", 2, 6), b"", memoryview(bytes(200_000)))
    center.merge(merge(), 0)
    assert center.vector.tolist() == [2.0] * 50_000
    assert published(center) == ["center:1", "payload:2:6"]


LONG = Layout((Blob("w/0", (50_000,)),))


class Near:
    """A center in shared memory, and the other end of its store, where a worker is."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.other = SharedMemoryStore(folder)
        self.exchange = Exchange("run", LONG, [Stores(self.other)])
        self.center = Center("run", LONG.zeros(), LONG, store or SharedMemoryStore(folder))
        self.center.publish()

    def send(self, value: float, ticket: int = 5) -> Refused | None:
        payload = self.exchange.memory_for(2, ticket)
        assert payload is not None
        payload.fill(value)
        sender = Sender(2, 1, ticket, self.center.version, 0)
        self.exchange.publish(sender, Kind.DELTA, self.exchange.encode(payload, None))
        return self.center.receive(Trained(2, 1, ticket, 0.5, 10), RULE)

    def fetched(self, version: int) -> list[float]:
        """The values that a worker finds in this version."""
        found = LONG.zeros()
        self.exchange.fetch_center(version, found)
        return sorted(set(found.tolist()))


def test_in_shared_memory_the_writers_norm_is_judged_in_place_of_a_pass(tmp_path: Path) -> None:
    near = Near(tmp_path)
    assert near.send(2.0) is None
    (held,) = near.center._payloads.values()
    assert held.norm == pytest.approx(4.0 * 50_000, rel=1e-5)
    assert not held.own


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_in_shared_memory_too_what_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    near = Near(tmp_path)
    refused = near.send(value)
    assert isinstance(refused, Refused)
    assert "not finite" in refused.reason
    assert near.send(1.0, ticket=6) is None


def test_each_version_is_made_beside_those_that_are_still_read(tmp_path: Path) -> None:
    near = Near(tmp_path)
    center = near.center
    seen = near.exchange.look_at_center(0)
    center.hold(0)
    for version in range(1, 6):
        assert near.send(1.0, ticket=version) is None
        center.merge(merge(version, ticket=version), 0)
        center.tidy()
        assert near.fetched(version) == [version]
        assert near.fetched(0) == [0.0]
    assert seen is not None
    seen.check()
    center.release(0)
    center.tidy()
    with pytest.raises(MissingKeyError):
        seen.check()
    assert sorted(center.vector.tolist()) == [5.0] * 50_000


def test_versions_that_nobody_needs_are_merged_in_one_place_and_published_once(
    tmp_path: Path,
) -> None:
    near = Near(tmp_path)
    for version in (1, 2, 3):
        assert near.send(1.0, ticket=version) is None
        near.center.merge(merge(version, ticket=version), 0, more=version < 3)
    assert near.fetched(3) == [3.0]
    assert published(near.center) == ["center:3"]


def test_a_center_whose_slot_somebody_deleted_is_put_back_and_merged_into(tmp_path: Path) -> None:
    near = Near(tmp_path)
    for version in (1, 2, 3):
        assert near.send(1.0, ticket=version) is None
        near.center.merge(merge(version, ticket=version), 0)
        near.other.delete(keys.center("run", version))
        near.center.restore()
        assert near.fetched(version) == [version]
        near.center.restore()
        near.center.publish()
        assert near.fetched(version) == [version]


def test_where_the_memory_is_full_versions_are_made_in_the_masters_own(tmp_path: Path) -> None:
    class Full(SharedMemoryStore):
        full = False

        def place(self, key: str, nbytes: int) -> memoryview | None:
            return None if self.full else super().place(key, nbytes)

    store = Full(tmp_path)
    near = Near(tmp_path, store)
    for version in range(1, 9):
        store.full = version in (3, 4, 7)
        seen = near.exchange.look_at_center(version - 1)
        near.center.hold(version - 1)
        assert near.send(1.0, ticket=version) is None
        near.center.merge(merge(version, ticket=version), 0)
        assert near.fetched(version) == [version]
        assert seen is not None
        assert set(seen.vector.tolist()) == {version - 1.0}
        seen.check()
        near.center.release(version - 1)
        near.center.tidy()


def test_a_center_that_also_goes_to_other_machines_has_a_checksum(tmp_path: Path) -> None:
    far = MemoryStore()
    near = Near(tmp_path, TieredStore(SharedMemoryStore(tmp_path), far, to_both=True))
    assert near.send(1.0) is None
    near.center.merge(merge(), 0)
    found = LONG.zeros()
    fetch_vector(far, keys.center("run", 1), LONG, Kind.CENTER, found)
    assert set(found.tolist()) == {1.0}
    assert near.fetched(1) == [1.0]


def test_a_vector_without_a_checksum_is_refused_from_another_machine(tmp_path: Path) -> None:
    near, far = Near(tmp_path), MemoryStore()
    key = keys.center("run", 0)
    body = bytearray(LONG.nbytes)
    head = near.other.read(key, memoryview(body))
    for sent in (head, head[:HEADER_BYTES]):
        far.write(key, sent, memoryview(body))
        with pytest.raises(PayloadError, match=r"checksum|bytes"):
            fetch_vector(far, key, LONG, Kind.CENTER, LONG.zeros())


def test_a_late_payload_is_removed_from_the_store() -> None:
    center = make_center()
    send(center, ones())
    center.drop(Drop(2, 1, 5, "late", "the run is over"))
    assert published(center) == ["center:0"]


def test_a_discarded_result_can_not_be_merged_any_more() -> None:
    center = make_center()
    send(center, ones())
    center.receive(EVENT, RULE)
    center.drop(Drop(2, 1, 5, "discarded", "too stale"))
    with pytest.raises(KeyError):
        center.merge(merge(), 0)


def test_a_version_stays_until_everybody_who_was_told_of_it_has_released_it() -> None:
    center = make_center()
    center.hold(0)
    center.hold(0)
    send(center, ones())
    center.receive(EVENT, RULE)
    center.merge(merge(), 0)
    assert published(center) == ["center:0", "center:1"]
    center.release(0)
    assert published(center) == ["center:0", "center:1"]
    center.release(0)
    assert published(center) == ["center:1"]


def test_the_newest_version_stays_though_nobody_holds_it() -> None:
    center = make_center()
    center.hold(0)
    center.release(0)
    assert published(center) == ["center:0"]


def test_what_is_published_carries_version_epoch_and_checksum() -> None:
    center = make_center(epoch=3)
    found = LAYOUT.zeros()
    header = fetch_vector(center.store, keys.center("run", 0), LAYOUT, Kind.CENTER, found)
    assert (header.version, header.epoch, header.worker, header.ticket) == (0, 3, 0, 0)


LOSSY = ("bfloat16", "int8", "topk:0.5", "sparse:0.5")
ROUNDED = Compression(center="bfloat16")


@pytest.mark.parametrize("compress", LOSSY)
def test_a_payload_in_the_runs_form_is_decoded_and_merged(compress: str) -> None:
    center = make_center(compression=Compression(compress))
    send(center, np.array([0, 2, 0, 4], np.float32), compress=compress)
    assert center.receive(EVENT, RULE) is None
    center.merge(merge(), 0)
    np.testing.assert_allclose(center.vector, [0, 2, 0, 4], atol=4 / 254)


@pytest.mark.parametrize("compress", LOSSY)
def test_a_damaged_body_is_refused_before_it_is_decoded(compress: str) -> None:
    center = make_center(compression=Compression(compress))
    send(center, ones(), compress=compress, flip=True)
    refused = center.receive(EVENT, RULE)
    assert isinstance(refused, Refused)
    assert "the checksum differs" in refused.reason


def test_a_payload_in_another_form_than_the_runs_is_refused() -> None:
    center = make_center(compression=Compression("bfloat16"))
    send(center, ones(), compress="int8")  # 4 codes and a scale: 8 bytes, as bfloat16 has
    refused = center.receive(EVENT, RULE)
    assert isinstance(refused, Refused)
    assert "written with compression int8 but this run uses bfloat16" in refused.reason
    assert refused.blame


@pytest.mark.parametrize("compress", LOSSY)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_in_any_form(compress: str, value: float) -> None:
    center = make_center(compression=Compression(compress))
    vector = ones()
    vector[1] = value
    send(center, vector, compress=compress)
    refused = center.receive(EVENT, RULE)
    assert isinstance(refused, Refused)
    assert "not finite" in refused.reason


def test_where_workers_fetch_rounded_centers_the_exact_one_lies_beside_them() -> None:
    center = make_center(compression=ROUNDED)
    send(center, np.full(4, 1 + 2**-12, np.float32))
    center.receive(EVENT, RULE)
    center.merge(merge(), 0)
    assert published(center) == ["center:1", "center:1:rounded"]
    found = LAYOUT.zeros()
    fetch_vector(center.store, keys.center("run", 1), LAYOUT, Kind.CENTER, found)
    assert found.tobytes() == center.vector.tobytes() != ones().tobytes()
    codec = make_codec("bfloat16", LAYOUT)
    fetch_vector(center.store, keys.rounded("run", 1), LAYOUT, Kind.CENTER, found, codec)
    assert found.tobytes() == ones().tobytes()


@pytest.mark.parametrize("elastic", [True, False])
def test_rounded_centers_that_workers_are_pulled_towards_are_right_in_the_mean(
    elastic: bool,
) -> None:
    """A center that stays at 1.001, a quarter of a step of bfloat16 above 1."""
    center = make_center(compression=ROUNDED)
    center.vector.fill(1.001)
    rule, kind = (Elastic(0.5), Kind.WEIGHTS) if elastic else (AddDelta(1.0), Kind.DELTA)
    payload = center.vector.copy() if elastic else LAYOUT.zeros()
    codec, found, total = make_codec("bfloat16", LAYOUT), LAYOUT.zeros(), np.zeros(4)
    for version in range(1, 101):
        send(center, payload, kind=kind)
        center.receive(EVENT, rule)
        center.merge(merge(version), 0)
        fetch_vector(center.store, keys.rounded("run", version), LAYOUT, Kind.CENTER, found, codec)
        total += found
    mean = 1.001 if elastic else 1.0
    np.testing.assert_allclose(total / 100, mean, atol=1e-4)


@pytest.mark.parametrize("form", [keys.center, keys.rounded])
def test_either_form_of_the_center_is_put_back_where_it_is_lost(
    form: Callable[[str, int], str],
) -> None:
    center = make_center(compression=ROUNDED)
    center.store.delete(form("run", 0))
    center.restore()
    assert published(center) == ["center:0", "center:0:rounded"]


def test_a_probe_is_a_write_that_goes_away_by_itself() -> None:
    """A store that is full answers all other questions."""
    now = [100.0]
    center = Center("run", LAYOUT.zeros(), LAYOUT, MemoryStore(clock=lambda: now[0]))
    center.probe()
    assert published(center) == ["probe"]
    now[0] = 159.9
    assert published(center) == ["probe"]
    now[0] = 160.0
    assert published(center) == []


@dataclass(frozen=True)
class CountingLayout(Layout):
    """Counts the vectors that are made."""

    made: list[int] = field(default_factory=list, compare=False)

    def zeros(self) -> Vector:
        self.made.append(1)
        return super().zeros()


def test_memory_of_payloads_is_used_again_whatever_became_of_them() -> None:
    layout = CountingLayout(LAYOUT.blobs)
    center = Center("run", LAYOUT.zeros(), layout, MemoryStore())
    center.publish()
    for version in range(1, 5):
        send(center, np.full(4, np.nan, np.float32))
        assert center.receive(EVENT, RULE) is not None
        center.tidy()
        assert center.receive(EVENT, RULE) is not None  # it is not there any more
        center.restore()
        send(center, ones())
        assert center.receive(EVENT, RULE) is None
        center.merge(merge(version), 0)
        send(center, ones())
        assert center.receive(EVENT, RULE) is None
        center.drop(Drop(2, 1, 5, "discarded", "too stale"))
    assert len(layout.made) == 1


def test_the_timings_of_a_merge_are_those_of_its_parts() -> None:
    times = iter([10.0, 11.0, 20.0, 22.0, 30.0, 33.0, 36.0])
    center = make_center()
    center.clock = lambda: next(times)
    for ticket in (5, 6):
        send(center, ones(), ticket=ticket, key=keys.payload("run", 2, ticket))
        assert center.receive(Trained(2, 1, ticket, 0.5, 10), RULE) is None
    parts = tuple(Part(2, 1, ticket, 10, 0, 0.5) for ticket in (5, 6))
    done = center.merge(Merge(1, 1, 20, 1.0, parts), 0)
    assert done == Merge(1, 1, 20, 1.0, parts, done.timings)
    own = {"merge": 3.0, "publish_center": 3.0}
    assert done.timings == ({"receive": 1.0, **own}, {"receive": 2.0, **own})


def test_a_master_that_was_replaced_publishes_nothing_more() -> None:
    def refuse() -> None:
        raise FencedError("another master has the run")

    center = Center("run", LAYOUT.zeros(), LAYOUT, MemoryStore(), fence=refuse)
    with pytest.raises(FencedError):
        center.publish()
    assert published(center) == []


def test_a_damaged_center_is_published_again() -> None:
    center = make_center()
    head, _ = center.store.read_head(keys.center("run", 0))
    center.store.write(keys.center("run", 0), head, memoryview(bytes(range(16))))
    center.restore()
    fetch_vector(center.store, keys.center("run", 0), LAYOUT, Kind.CENTER, LAYOUT.zeros())


class ReadsCounted(MemoryStore):
    """Counts the bodies that are read."""

    reads = 0

    def read(self, key: str, into: memoryview, arrived: Arrived | None = None) -> bytes:
        self.reads += 1
        return super().read(key, into, arrived)


def test_a_center_that_many_ask_for_is_read_a_few_times_and_put_back_at_once_if_lost() -> None:
    """A worker whose turns fail without blame asked for it at each: 240 MB of AlexNet every time."""
    store = ReadsCounted()
    center = Center("run", LAYOUT.zeros(), LAYOUT, store)
    center.publish()
    for _ in range(1000):
        center.restore()
    assert store.reads == 10
    store.delete(keys.center("run", 0))
    center.restore()
    assert published(center) == ["center:0"]


def test_a_center_that_is_damaged_later_is_found_by_those_that_ask_again() -> None:
    center = make_center()
    for _ in range(5):
        center.restore()
    head, _ = center.store.read_head(keys.center("run", 0))
    center.store.write(keys.center("run", 0), head, memoryview(bytes(range(16))))
    for _ in range(5):
        center.restore()
    fetch_vector(center.store, keys.center("run", 0), LAYOUT, Kind.CENTER, LAYOUT.zeros())


def test_a_center_knows_what_a_turn_moves() -> None:
    center = make_center(compression=Compression("int8", "bfloat16"))
    assert (center.payload_bytes, center.center_bytes) == (60 + 4 + 4, 60 + 8)
    assert (make_center().payload_bytes, make_center().center_bytes) == (76, 76)
