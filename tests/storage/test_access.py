"""Users of Redis per role, on a real server: what each may do, and what it is refused."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedo.errors import (
    MissingKeyError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
)
from speedo.storage import keys
from speedo.storage.lease import MasterFence, MasterLease
from speedo.storage.redis.resp import Reply
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.users import StoreUsers
from speedo.storage.retrying_store import RetryingStore
from tests.storage.conftest import BODY, RawClient, get, put

pytestmark = pytest.mark.redis

RUN = "ab12cd34:1"
CENTER = keys.center(RUN, 0)
OWN = keys.payload(RUN, 0, 7)
STATE = keys.state(RUN, 0, 7)
OTHER = keys.payload(RUN, 1, 7)


@pytest.fixture
def access(server: PrivateRedis, store: RedisStore) -> Iterator[StoreUsers]:
    put(store, CENTER)
    made = StoreUsers(server.url, RUN, saved=True)
    yield made
    made.close()


@pytest.fixture
def worker(access: StoreUsers) -> RedisStore:
    return RedisStore(access.admit_worker(0, 1), chunk_bytes=100)


@pytest.fixture
def reader(access: StoreUsers) -> RedisStore:
    return RedisStore(access.admit_reader(), chunk_bytes=100)


def users(server: PrivateRedis) -> set[str]:
    reply = RedisStore(server.url).administer("ACL", "USERS")
    assert isinstance(reply, list)
    return {name.decode() for name in reply if isinstance(name, bytes)} - {"tester"}


def test_a_trouble_that_outlasted_the_patience_is_over_once_a_call_works(
    server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str | None] = []
    access = StoreUsers(server.url, RUN, saved=True, patience_s=0.2, on_trouble=said.append)
    with monkeypatch.context() as patch:

        def away(*arguments: str) -> Reply:
            raise StoreUnavailableError("no Redis answers")

        patch.setattr(access._store, "administer", away)
        with pytest.raises(StoreUnavailableError):
            access.admit_reader()
    assert said == ["no Redis answers"]
    access.admit_reader()
    assert said == ["no Redis answers", None]
    access.close()


def test_a_worker_reads_centers_and_owns_its_payloads_and_states(worker: RedisStore):
    assert get(worker, CENTER) == (b"head", bytes(BODY))
    for key in (OWN, STATE):
        worker.write(key, b"one", BODY, expire_s=100)
        worker.write(key, b"two", BODY)
        assert get(worker, key) == (b"two", bytes(BODY))
        worker.delete(key)
        with pytest.raises(MissingKeyError):
            worker.read_head(key)
    worker.ping()


@pytest.mark.parametrize("body", [b"short", bytes(BODY)])
@pytest.mark.parametrize(
    "key",
    [
        CENTER,
        OTHER,
        keys.payload(RUN, 10, 7),
        keys.state(RUN, 1, 0),
        keys.payload("ab12cd34:2", 0, 7),
        keys.center("ab12cd34:2", 0),
        "somebody:else",
    ],
)
def test_a_worker_writes_and_deletes_nothing_else(
    worker: RedisStore, raw: RawClient, key: str, body: bytes
):
    before = raw.redis.keys("*")
    for call in (lambda: put(worker, key, body), lambda: worker.delete(key)):
        with pytest.raises(StoreError, match="refuse this user"):
            call()
    assert raw.redis.keys("*") == before


@pytest.mark.parametrize("key", [OTHER, keys.center("ab12cd34:2", 0), "somebody:else"])
def test_a_worker_reads_nothing_else(worker: RedisStore, key: str):
    for call in (lambda: worker.read_head(key), lambda: worker.read(key, memoryview(bytearray(9)))):
        with pytest.raises(StoreError, match="refuse this user"):
            call()


FORBIDDEN = [
    "KEYS *", "EVAL x 0", "CONFIG GET *", "CONFIG SET maxmemory 1", "FLUSHALL", "FLUSHDB", "SCAN 0",
    "DEBUG SLEEP 0", "SHUTDOWN", "MODULE LIST", "REPLICAOF NO ONE", "MONITOR", "CLIENT LIST",
    "CLIENT PAUSE 1", "CLIENT KILL TYPE normal",
    "INFO", "SUBSCRIBE x", "SWAPDB 0 1", "SCRIPT FLUSH", "FUNCTION LIST", "ACL LIST", "ACL WHOAMI",
    "ACL SETUSER default on", "MIGRATE h 1 x 0 1", "SAVE", "BGSAVE", "RENAME a b", "COPY a b",
    "RANDOMKEY", "DBSIZE",
]  # fmt: skip


@pytest.mark.parametrize("who", ["worker", "reader"])
def test_no_other_command_is_for_workers_and_tester(
    request: pytest.FixtureRequest, server: PrivateRedis, who: str
):
    user: RedisStore = request.getfixturevalue(who)
    for command in FORBIDDEN:
        with pytest.raises(StoreError, match=r"NOPERM|DEBUG command not allowed"):
            user.administer(*command.split())
    assert users(server) == {"default", "master"} | {
        "speedo-ab12cd34-1-w0-1" if who == "worker" else "speedo-ab12cd34-1-reader"
    }


@pytest.mark.parametrize(
    "command",
    [
        command
        for command in FORBIDDEN
        if not command.startswith(("SCAN", "INFO", "ACL SETUSER", "CLIENT LIST", "CLIENT KILL"))
    ],
)
def test_the_master_has_only_what_the_store_needs(server: PrivateRedis, command: str):
    with pytest.raises(StoreError, match=r"NOPERM|DEBUG command not allowed"):
        RedisStore(server.url).administer(*command.split())


def test_the_tester_reads_centers_alone(reader: RedisStore):
    assert get(reader, CENTER) == (b"head", bytes(BODY))
    for call in (
        lambda: put(reader, CENTER),
        lambda: reader.delete(CENTER),
        lambda: put(reader, OWN),
        lambda: reader.read_head(OWN),
    ):
        with pytest.raises(StoreError, match="refuse this user"):
            call()


def test_nobody_comes_in_without_a_user(server: PrivateRedis):
    with pytest.raises(StoreAccessError, match="it requires a password"):
        RedisStore(f"redis://{server.address}").ping()
    for login in ("default:", "default:default", "master:", "speedo-ab12cd34-1-w0-1:guess"):
        with pytest.raises(StoreAccessError):
            RedisStore(f"redis://{login}@{server.address}").ping()


def test_a_worker_that_left_is_cut_off_at_once(access: StoreUsers, worker: RedisStore, server):
    worker.ping()
    access.dismiss(0, 1)
    with pytest.raises(StoreAccessError, match="does not accept this user"):
        worker.ping()
    assert users(server) == {"default", "master"}


def test_a_newer_incarnation_shuts_the_older_out(access: StoreUsers, worker: RedisStore):
    worker.ping()
    newer = RedisStore(access.admit_worker(0, 2))
    beside = RedisStore(access.admit_worker(1, 1))
    with pytest.raises(StoreAccessError):
        worker.ping()
    newer.ping()
    beside.ping()


def test_an_incarnation_may_still_write_beside_the_next_until_it_is_dismissed(
    access: StoreUsers, worker: RedisStore
):
    next_one = RedisStore(access.admit_worker(0, 2, beside=1))
    worker.ping()
    next_one.ping()
    access.dismiss(0, 1)
    with pytest.raises(StoreAccessError):
        worker.ping()
    next_one.ping()


def test_a_run_removes_its_users_and_leaves_those_of_others(server: PrivateRedis):
    former, other = StoreUsers(server.url, "ab12cd34:1"), StoreUsers(server.url, "ff12cd34:1")
    former.admit_worker(3, 1)
    other.admit_worker(0, 1)
    newer = StoreUsers(server.url, "ab12cd34:2")
    newer.admit_worker(0, 1)
    everyone = {"default", "master", "speedo-ff12cd34-1-w0-1", "speedo-ab12cd34-2-w0-1"}
    assert users(server) == everyone, "a newer epoch shuts the former one out"
    former.close()
    assert users(server) == everyone, "a former master does not touch the newer one's"
    newer.close()
    assert users(server) == everyone - {"speedo-ab12cd34-2-w0-1"}
    other.close()
    assert users(server) == {"default", "master"}


@pytest.mark.parametrize("saved", [True, False])
def test_workers_go_on_when_redis_comes_back(saved: bool):
    """Our own server knows its users again by itself; to another, the master tells them within a second or so."""
    with PrivateRedis() as server:
        access = StoreUsers(server.url, RUN, saved=saved)
        worker = RetryingStore(RedisStore(access.admit_worker(0, 1)), patience_s=30)
        gone = access.admit_worker(1, 1)
        access.dismiss(1, 1)
        worker.ping()
        os.kill(server.process_id, signal.SIGKILL)
        writing = threading.Thread(target=lambda: put(worker, OWN), daemon=True)
        writing.start()
        writing.join(30)
        assert get(worker, OWN) == (b"head", bytes(BODY))
        assert access.restore() == 0
        with pytest.raises(StoreAccessError):
            RedisStore(gone).ping()
        access.close()


def test_users_that_the_server_could_not_save_are_restored_by_the_master():
    with PrivateRedis() as server:
        access = StoreUsers(server.url, RUN, saved=True)
        file = server._home / "users.acl"
        text = file.read_text()
        file.unlink()
        file.mkdir()
        worker = RetryingStore(RedisStore(access.admit_worker(0, 1)), patience_s=30)
        worker.ping()
        file.rmdir()
        file.write_text(text)
        os.kill(server.process_id, signal.SIGKILL)
        put(worker, OWN)
        access.close()


def test_who_leaves_while_redis_is_away_stays_out():
    with PrivateRedis() as server:
        access = StoreUsers(server.url, RUN, saved=True)
        worker = RedisStore(access.admit_worker(0, 1))
        os.kill(server.process_id, signal.SIGKILL)
        access.dismiss(0, 1)
        access.admit_worker(1, 1)
        with pytest.raises(StoreAccessError):
            worker.ping()
        access.close()


def test_where_users_cannot_be_made_all_share_the_masters_url(server: PrivateRedis, raw: RawClient):
    rules = ("on", ">given", "~*", "+@all", "-acl")
    raw.redis.execute_command("ACL", "SETUSER", "plain", *rules)
    url = f"redis://plain:given@{server.address}/0"
    access = StoreUsers(url, RUN)
    assert "all of them share one password. Use Redis 7.0 or later" in (access.problem() or "")
    assert access.admit_worker(0, 1) == access.admit_reader() == url
    access.dismiss(0, 1)
    assert access.restore() == 0
    access.close()
    raw.redis.execute_command("ACL", "DELUSER", "plain")


def test_the_rights_that_the_documentation_asks_for_are_enough(server, raw: RawClient):
    rules = (
        "on >given ~speedo:* -@all +ping +select +get +getrange +set +unlink +persist +pexpire +multi +exec "
        "+scan +info +acl|setuser +acl|deluser +acl|users +watch +unwatch +pttl"
    )
    raw.redis.execute_command("ACL", "SETUSER", "given", *rules.split())
    url = f"redis://given:given@{server.address}/0"
    own, access = RedisStore(url, chunk_bytes=100), StoreUsers(url, RUN)
    assert own.check_server() == []
    assert access.problem() is None
    put(own, CENTER)
    assert get(RedisStore(access.admit_worker(0, 1)), CENTER) == (b"head", bytes(BODY))
    assert access.restore() == 0
    lease = MasterLease(RedisStore(url), "lease")
    fence = MasterFence(RedisStore(url), "lease", lease.claim())
    put(RedisStore(url, chunk_bytes=100, guard=fence.guard), keys.center("lease:0", 1))
    fence.require()
    lease.renew()
    lease.end()
    own.delete(*own.keys("speedo:"))
    access.close()
    raw.redis.execute_command("ACL", "DELUSER", "given")
    assert users(server) == {"default", "master"}


def test_secrets_are_in_no_command_line_and_no_text(server: PrivateRedis, access: StoreUsers):
    url = access.admit_worker(0, 1)
    secrets = [one.split("@")[0].rsplit(":", 1)[1] for one in (server.url, url)]
    assert [len(secret) for secret in secrets] == [48, 48]
    texts = [
        repr(access),
        repr(vars(access)["_users"]),
        repr(RedisStore(url)),
        str(access.problem()),
    ]
    texts += [(server._home / name).read_text() for name in ("log", "users.acl", "redis.conf")]
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(line.read_text(errors="replace"))
        except OSError:
            continue  # it has ended meanwhile
    assert not [text for text in texts for secret in secrets if secret in text]
