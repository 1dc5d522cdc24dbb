"""A private server that speaks TLS: who is trusted, and that nothing else is served."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator

import pytest

from speedo.errors import StoreError, StoreUnavailableError
from speedo.storage.redis.certificate import make_certificate
from speedo.storage.redis.server import PrivateRedis
from speedo.storage.redis.store import RedisStore
from speedo.storage.redis.users import StoreUsers
from speedo.storage.retrying_store import RetryingStore
from tests.storage.conftest import BODY, get, put

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def secure() -> Iterator[PrivateRedis]:
    with PrivateRedis(tls=True) as running:
        yield running


@pytest.mark.parametrize("size", [0, 1000, 3_000_000])
def test_blobs_travel(secure: PrivateRedis, size: int):
    store = RedisStore(secure.url, ca_pem=secure.ca_pem)
    assert secure.url.startswith("rediss://")
    put(store, "k", bytes(BODY[:1]) * size)
    assert get(store, "k") == (b"head", bytes(BODY[:1]) * size)
    store.delete("k")
    store.close()


def test_the_port_speaks_nothing_but_tls(secure: PrivateRedis):
    with pytest.raises(StoreError):
        RedisStore(secure.url.replace("rediss:", "redis:"), timeout_s=2).ping()


def test_another_authority_is_not_trusted(secure: PrivateRedis, tmp_path):
    other = make_certificate(tmp_path, "127.0.0.1")
    for authority in (other, ""):
        with pytest.raises(StoreError, match="no TLS that can be verified") as caught:
            RedisStore(secure.url, ca_pem=authority).ping()
        assert not isinstance(caught.value, StoreUnavailableError)


def test_the_servers_name_is_verified(secure: PrivateRedis):
    url = secure.url.replace("127.0.0.1", "localhost")
    with pytest.raises(StoreError, match=r"no TLS that can be verified.*ostname mismatch"):
        RedisStore(url, ca_pem=secure.ca_pem).ping()


def test_the_key_is_for_its_owner_alone(secure: PrivateRedis):
    assert stat.S_IMODE((secure._home / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(secure._home.stat().st_mode) == 0o700
    assert "PRIVATE" not in secure.ca_pem


def test_after_a_restart_the_same_authority_and_users_hold():
    with PrivateRedis(tls=True) as server:
        access = StoreUsers(server.url, "r:1", ca_pem=server.ca_pem, saved=True)
        url = access.admit_worker(0, 1)
        store = RedisStore(url, ca_pem=server.ca_pem)
        worker = RetryingStore(store, patience_s=20)
        worker.ping()
        os.kill(server.process_id, signal.SIGKILL)
        put(worker, "speedo:r:1:payload:0:1")
        assert worker.outages == 1
        access.dismiss(0, 1)  # over a connection that broke meanwhile
        with pytest.raises(StoreError, match="does not accept this user"):
            store.ping()
        access.close()


def test_a_name_gets_a_certificate_too_and_a_missing_program_is_told(tmp_path):
    assert make_certificate(tmp_path, "localhost").startswith("-----BEGIN CERTIFICATE")
    with pytest.raises(StoreError, match="apt-get install openssl"):
        make_certificate(tmp_path, "localhost", program="openssl-that-is-not-there")
