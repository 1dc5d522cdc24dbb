"""The lease of a run and what is written under its epoch: the same in Redis and in the simulator's store."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from speedo.errors import FencedError, StoreError, StoreUnavailableError
from speedo.storage import keys
from speedo.storage import lease as module
from speedo.storage.conditional import Decide, Guard, Small
from speedo.storage.lease import LEASE_S, MasterFence, MasterLease
from speedo.storage.redis.store import RedisStore
from speedo.storage.retrying_store import Patience, RetryingStore
from tests.storage.conftest import RawClient, get, put
from tests.support.commands import how_loaded
from tests.support.conditional_memory import ConditionalMemory

AnyStore = ConditionalMemory | RedisStore
_runs = itertools.count()


@dataclass
class Bench:
    """`connect` makes a connection to the same store, with a guard for a master."""

    connect: Callable[[Guard | None], AnyStore]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    run: str = field(default_factory=lambda: f"lease{next(_runs)}")

    def lease(self, address: str = "") -> MasterLease:
        return MasterLease(self.connect(None), self.run, address, clock=self.clock)

    def fence(self, epoch: int) -> MasterFence:
        return MasterFence(self.connect(None), self.run, epoch, clock=self.clock, sleep=self.sleep)

    def store(self, fence: MasterFence) -> AnyStore:
        """That of the master of this fence."""
        return self.connect(fence.guard)

    def publish(self, fence: MasterFence, version: int, nbytes: int = 10) -> None:
        fence.guard.entry = b"entry %d" % version
        put(self.store(fence), self.center(fence, version), b"x" * nbytes)

    def center(self, fence: MasterFence, version: int) -> str:
        return keys.center(f"{self.run}:{fence.guard.epoch}", version)

    def expire(self) -> None:
        """The lease expires."""
        name = keys.lease(self.run)
        self.connect(None).change((name,), lambda _: {name: None})

    def forget(self) -> None:
        """The store has lost all that it had of this run."""
        names = keys.epoch(self.run), keys.lease(self.run), keys.journal(self.run)
        self.connect(None).change(names, lambda _: dict.fromkeys(names))


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "memory":
        now = [100.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        server = ConditionalMemory(clock=lambda: now[0])
        yield Bench(server.for_master, lambda: now[0], sleep)
        return
    raw: RawClient = request.getfixturevalue("raw")
    url = raw.url
    opened: list[RedisStore] = []

    def connect(guard: Guard | None) -> RedisStore:
        opened.append(RedisStore(url, chunk_bytes=100, timeout_s=5.0, guard=guard))
        return opened[-1]

    yield Bench(connect, time.monotonic, time.sleep)
    for one in opened:
        one.close()
    raw.redis.flushall()


def quick(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> float:
    """Leases that last as long as this, where time is real."""
    seconds = LEASE_S if isinstance(bench.connect(None), ConditionalMemory) else 0.3 * how_loaded()
    monkeypatch.setattr(module, "LEASE_S", seconds)
    return seconds


def test_the_first_gets_the_lease_and_others_are_told_who_has_it(bench: Bench) -> None:
    assert bench.lease().holder().epoch == -1
    first = bench.lease("10.0.0.1:6650")
    assert (first.claim(least=3), first.epoch) == (3, 3)
    with pytest.raises(FencedError, match=r"epoch 3 at 10\.0\.0\.1:6650, whose lease lasts \d s"):
        bench.lease().claim()
    with pytest.raises(FencedError, match="has a master"):
        bench.lease().claim(3)
    holder = bench.lease().holder()
    assert (holder.epoch, holder.address) == (3, "10.0.0.1:6650")
    assert not holder.is_expired
    assert 0 < holder.left_s <= LEASE_S


def test_one_standby_takes_over_once_the_lease_has_expired(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasts = quick(bench, monkeypatch)
    first, second, third = (bench.lease() for _ in range(3))
    first.claim()
    for _ in range(3):
        bench.sleep(0.6 * lasts)
        first.renew()
    assert not second.holder().is_expired
    bench.sleep(1.1 * lasts)
    assert second.holder().is_expired
    assert second.claim(0) == 1
    for other in (third, first):
        with pytest.raises(FencedError, match="epoch is 1, that of the one to follow 0"):
            other.claim(0)
    with pytest.raises(FencedError, match=r"its epoch is 1, ours 0"):
        first.renew()
    with pytest.raises(FencedError, match="its epoch is 1, ours 0"):
        first.end()
    second.renew()
    assert bench.lease().holder().epoch == 1


def test_a_command_follows_its_own_master_at_once(bench: Bench) -> None:
    own = bench.lease()
    own.claim()
    former = bench.fence(0)
    bench.publish(former, 1)
    assert own.claim(0, ours=True) == 1
    with pytest.raises(FencedError):
        bench.publish(former, 2)
    own.renew()


@pytest.mark.parametrize("nbytes", [10, 1000])
def test_who_was_replaced_writes_nothing(bench: Bench, nbytes: int) -> None:
    bench.lease().claim()
    first, second = bench.fence(0), bench.fence(1)
    bench.publish(first, 1, nbytes)
    assert second.entry() == b"entry 1"
    bench.expire()
    assert bench.lease().claim(0) == 1
    with pytest.raises(FencedError, match=r"taken this run over \(its epoch is 1, ours 0\)"):
        bench.publish(first, 2, nbytes)
    with pytest.raises(FencedError):
        first.require()
    store = bench.connect(None)
    assert store.keys(f"speedo:{bench.run}:0:") == [bench.center(first, 1)]
    assert second.entry() == b"entry 1"
    bench.publish(second, 2, nbytes)
    second.require()
    assert second.entry() == b"entry 2"
    assert get(store, bench.center(second, 2)) == (b"head", b"x" * nbytes)


@pytest.mark.parametrize("nbytes", [10, 1000])
def test_a_takeover_in_the_middle_of_a_write_lets_nothing_of_it_through(
    bench: Bench, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the epoch and the write that depends on it."""
    bench.lease().claim()
    first, taken = bench.fence(0), threading.Event()
    allowed = Guard.require

    def take_over(guard: Guard, value: Small | None) -> None:
        allowed(guard, value)
        if not taken.is_set():
            taken.set()
            bench.expire()
            assert bench.lease().claim(0) == 1

    monkeypatch.setattr(Guard, "require", take_over)
    with pytest.raises(StoreUnavailableError, match="another write came between"):
        bench.publish(first, 1, nbytes)
    patient = RetryingStore(bench.store(first), patience_s=5.0)
    with pytest.raises(FencedError):
        put(patient, bench.center(first, 1), b"x" * nbytes)
    store = bench.connect(None)
    assert store.keys(f"speedo:{bench.run}:0:") == []
    assert bench.fence(1).entry() == b""
    if isinstance(store, RedisStore):
        with pytest.raises(FencedError):
            bench.publish(first, 1, nbytes)
        assert store.administer("KEYS", f"speedo:{bench.run}*#*") == []


def test_the_end_is_known_to_who_waits_and_nobody_takes_over(bench: Bench) -> None:
    first, waiting = bench.lease(), bench.lease()
    first.claim()
    bench.publish(bench.fence(0), 1)
    first.end()
    first.end()  # as if the answer had been lost
    bench.fence(0).require()  # it may still clean up
    holder = waiting.holder()
    assert (holder.is_over, holder.is_expired) == (True, False)
    assert bench.fence(0).entry() == b""
    with pytest.raises(FencedError, match="the run is over"):
        waiting.claim(0)
    assert bench.lease().claim() == 1  # a person continues it


def test_who_hands_over_makes_nobody_wait(bench: Bench) -> None:
    first, waiting = bench.lease(), bench.lease()
    first.claim()
    bench.publish(bench.fence(0), 1)
    first.end(over=False)
    assert waiting.holder().is_expired
    assert waiting.claim(0) == 1
    assert bench.fence(1).entry() == b"entry 1"


def test_a_claim_whose_answer_was_lost_is_known_again(bench: Bench) -> None:
    first = bench.lease()
    first.claim()
    assert first.claim() == 0
    bench.expire()
    second = bench.lease()
    assert second.claim(0) == 1
    assert second.claim(0) == 1
    assert second.claim(1, ours=True) == 2
    assert second.claim(1, ours=True) == 2


def test_a_store_that_has_lost_all_is_no_reason_to_take_over(bench: Bench) -> None:
    first, waiting = bench.lease("here:1"), bench.lease()
    first.claim(least=4)
    fence = bench.fence(4)
    bench.forget()
    with pytest.raises(FencedError, match="has lost the lease of this run"):
        waiting.claim(4)
    with pytest.raises(StoreUnavailableError, match="waits until the master's command has written"):
        bench.publish(fence, 1)
    first.renew()
    assert (waiting.holder().epoch, waiting.holder().address) == (4, "here:1")
    bench.publish(fence, 1)


def test_a_lease_that_has_run_out_and_is_lost_is_not_written_again_where_there_is_a_standby(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby may have had the run meanwhile."""
    lasts = quick(bench, monkeypatch)
    first = bench.lease()
    first.claim()
    bench.sleep(1.1 * lasts)
    bench.forget()
    first.renew()  # nobody else can have it
    first.has_standby = True
    bench.forget()
    first.renew()
    bench.sleep(1.1 * lasts)
    bench.forget()
    with pytest.raises(FencedError, match="lost the epoch of this run, and this master's lease"):
        first.renew()
    assert bench.lease().holder().epoch == -1


def test_once_the_standby_has_left_a_lost_lease_is_written_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasts = quick(bench, monkeypatch)
    first = bench.lease("here:1")
    first.claim()
    first.has_standby = True
    first.has_standby = False
    bench.sleep(1.1 * lasts)
    bench.forget()
    first.renew()
    assert bench.lease().holder().address == "here:1"


class Away:
    """A store whose server is away until a time, by the clock of the test."""

    def __init__(self, store: ConditionalMemory, until: float, clock: Callable[[], float]) -> None:
        self.store, self.until, self.clock = store, until, clock
        self.address = store.address

    def change(self, names: tuple[str, ...], decide: Decide) -> None:
        if self.clock() < self.until:
            raise StoreUnavailableError("no Redis answers")
        self.store.change(names, decide)


@pytest.mark.parametrize(("has_standby", "asked"), [(True, True), (False, False)])
def test_a_fence_waits_with_the_patience_of_the_run_while_there_is_a_standby(
    has_standby: bool, asked: bool
) -> None:
    """An outage of 40 s: nothing is written meanwhile, and the run does not end."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    store = ConditionalMemory(clock=lambda: now[0])
    MasterLease(store, "run", clock=lambda: now[0]).claim()
    away = Away(store, 140.0, lambda: now[0])
    fence = MasterFence(away, "run", 0, patience_s=60.0, clock=lambda: now[0], sleep=sleep)
    fence.expect_standby(True)
    fence.expect_standby(has_standby)
    fence.require()
    assert (now[0] >= 140.0) is asked
    assert now[0] <= 141.0
    away.until = 500.0
    if has_standby:
        with pytest.raises(StoreUnavailableError, match="not known which master has the run"):
            fence.require()
    now[0], away.until = 200.0, 240.0
    assert fence.entry() == b""
    assert now[0] >= 240.0


def test_a_claim_and_the_end_are_repeated_and_a_renewal_is_not() -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    store = ConditionalMemory(clock=lambda: now[0])
    away = Away(store, 120.0, lambda: now[0])
    patience = Patience(30.0, clock=lambda: now[0], sleep=sleep, has_worked=True)
    lease = MasterLease(away, "run", patience=patience, clock=lambda: now[0])
    assert lease.claim() == 0
    assert now[0] >= 120.0
    away.until = 130.0
    began = now[0]
    with pytest.raises(StoreUnavailableError):
        lease.renew()
    assert now[0] == began
    lease.end()
    assert lease.holder().is_over
    now[0], away.until = 200.0, 300.0
    assert not lease.in_doubt
    with pytest.raises(StoreUnavailableError, match=r"did not recover in 30\.\d s"):
        lease.claim(0)
    assert lease.in_doubt, "it may be carried out later"


def test_a_higher_epoch_is_written_over_a_lower_one_that_came_back(bench: Bench) -> None:
    """As of a Redis that was restarted with the data of an hour ago."""
    first, second = bench.lease(), bench.lease()
    first.claim()
    bench.expire()
    second.claim(0)
    bench.forget()
    first.renew()
    second.renew()
    with pytest.raises(FencedError):
        first.renew()


def test_a_master_that_cannot_ask_writes_nothing_once_there_is_a_standby(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.lease().claim()
    fence = bench.fence(0)
    began = bench.clock()

    def refuse(*_: object) -> None:
        raise StoreUnavailableError("no Redis answers")

    monkeypatch.setattr(type(fence._store), "change", refuse)
    monkeypatch.setattr(module, "LEASE_S", 0.2)
    monkeypatch.setattr(module, "RENEW_S", 0.1)
    monkeypatch.setattr(fence, "_patience_s", 0.4)
    fence.require()
    fence.expect_standby(True)
    with pytest.raises(StoreUnavailableError, match="no Redis answers; so it is not known which"):
        fence.require()
    assert bench.clock() - began < 60.0


@pytest.mark.redis
def test_of_many_who_claim_at_once_one_gets_it(raw: RawClient) -> None:
    for attempt in range(10):
        run = f"race{attempt}"
        MasterLease(RedisStore(raw.url), run).claim()
        RedisStore(raw.url).administer("DEL", keys.lease(run))
        got: list[int] = []

        def claim(run: str = run, got: list[int] = got) -> None:
            with suppress(FencedError):
                got.append(MasterLease(RedisStore(raw.url), run).claim(0))

        threads = [threading.Thread(target=claim) for _ in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert got == [1]


class Both:
    """The same calls to Redis and to the simulator's store, by three commands and the masters of all epochs."""

    def __init__(self, raw: RawClient, seed: int) -> None:
        self.benches = [
            Bench(
                ConditionalMemory(clock=lambda: 0.0).for_master, lambda: 0.0, lambda _: None, "both"
            ),
            Bench(
                lambda guard: self.connection(raw.url, guard),
                lambda: 0.0,
                lambda _: None,
                f"both{seed}",
            ),
        ]
        self.benches[0].run = f"both{seed}"
        self.connections: list[RedisStore] = []
        self.leases = [[bench.lease(f"at{n}") for n in range(3)] for bench in self.benches]

        self.masters = {
            (far, epoch): (fence, bench.store(fence))
            for far, bench in enumerate(self.benches)
            for epoch in range(4)
            for fence in [bench.fence(epoch)]
        }

    def publish(self, bench: Bench, epoch: int, version: int, nbytes: int) -> None:
        fence, store = self.masters[bench is self.benches[1], epoch]
        fence.guard.entry = b"entry %d" % version
        put(store, bench.center(fence, version), b"x" * nbytes)

    def connection(self, url: str, guard: Guard | None) -> RedisStore:
        self.connections.append(RedisStore(url, chunk_bytes=100, guard=guard))
        return self.connections[-1]

    def answers(self, call: Callable[[Bench, list[MasterLease]], object]) -> list[object]:
        found = []
        for bench, leases in zip(self.benches, self.leases, strict=True):
            try:
                found.append(call(bench, leases))
            except (FencedError, StoreError, AssertionError) as error:
                found.append(type(error))
        return found


@pytest.mark.redis
def test_any_sequence_of_calls_has_the_same_answers_in_redis_and_in_the_simulators_store(
    raw: RawClient,
) -> None:
    fenced = 0
    for seed in range(20):
        chance, both = random.Random(f"lease {seed}"), Both(raw, seed)
        for step in range(25):
            who, epoch, version = chance.randrange(3), chance.randrange(4), 10 * step
            after = chance.choice((None, 0, 1, 2, 3))
            ours, over, size = chance.random() < 0.3, chance.random() < 0.3, chance.choice((5, 500))
            call = chance.choice(
                ("claim", "claim", "renew", "end", "expire", "forget", "publish", "publish")
            )
            if call == "forget" and chance.random() < 0.7:
                call = "publish"

            def do(
                bench: Bench,
                leases: list[MasterLease],
                call: str = call,
                who: int = who,
                epoch: int = epoch,
                version: int = version,
                after: int | None = after,
                ours: bool = ours,
                over: bool = over,
                size: int = size,
                both: Both = both,
            ) -> object:
                if call == "claim":
                    return leases[who].claim(after, ours=ours)
                if call == "renew":
                    return leases[who].renew()
                if call == "end":
                    return leases[who].end(over=over)
                if call == "publish":
                    return both.publish(bench, epoch, version, size)
                return bench.expire() if call == "expire" else bench.forget()

            one, other = both.answers(do)
            assert one == other, (seed, step, call)
            fenced += one is FencedError

            def look(bench: Bench, leases: list[MasterLease], both: Both = both) -> object:
                holder = leases[0].holder()
                said = holder.epoch, holder.address, holder.is_over, holder.left_s > 0
                fence, store = both.masters[bench is both.benches[1], 0]
                return said, fence.entry(), store.keys(f"speedo:{bench.run}:0:")

            one, other = both.answers(look)
            assert one == other, (seed, step, call)
        for connection in both.connections:
            connection.close()
    assert fenced > 50
    raw.redis.flushall()
