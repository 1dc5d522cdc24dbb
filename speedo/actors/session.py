"""Ray under our terms: token authentication, no dashboard, no traces left in the temporary folder."""

from __future__ import annotations

import errno
import importlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from speedo.errors import ClusterError
from speedo.token import new_token

OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024  # Ray's least: nothing of ours travels through it
NAMESPACE: Final = "speedo"


@cache
def own_token() -> str:
    """The token of this process's own runs: always the same, because Ray reads it once per process."""
    return new_token()


def _environment(token: str) -> dict[str, str]:
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def load_ray(token: str) -> None:
    """Import Ray, which reads its settings from the environment once."""
    os.environ.update(_environment(token))
    importlib.import_module("ray")


@contextmanager
def head(token: str, host: str, port: int | None) -> Iterator[None]:
    """Run a Ray head in this process's care; without `port` on any free one, for this machine alone."""
    os.environ.update(_environment(token))
    if port is not None:
        require_free_port(host, port)
        os.environ["RAY_GCS_SERVER_PORT"] = str(port)
    import ray

    if ray.is_initialized():
        raise ClusterError("Ray already runs in this process: call ray.shutdown() before a run")
    folder = tempfile.mkdtemp(prefix="speedo-ray-")
    try:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address=host,
            _temp_dir=folder,
        )
        _silence()
        yield
    finally:
        os.environ.pop("RAY_GCS_SERVER_PORT", None)
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def require_free_port(host: str, port: int) -> None:
    """Raises `ClusterError` if something listens there or the address is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            remedy = "give another --port, or stop the other master"
            if error.errno != errno.EADDRINUSE:
                remedy = "give a --host that is an address of this machine"
            raise ClusterError(f"{host}:{port} cannot be served ({why}): {remedy}") from None


@contextmanager
def member(token: str, address: str) -> Iterator[None]:
    """Join the cluster at `address` (host:port) from this machine; a node is started if there is none here."""
    os.environ.update(_environment(token))
    import ray

    host = address.rpartition(":")[0]
    with _node(address) if not _is_this_machine(host) else _nothing():
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                _node_ip_address=host if _is_this_machine(host) else None,
            )
        except (ConnectionError, RuntimeError) as error:
            raise ClusterError(
                f"the master at {address} cannot be joined: {_sentence(error)}"
            ) from None
        _silence()
        try:
            yield
        finally:
            ray.shutdown()


def _silence() -> None:
    """Keep Ray's own words about dead workers off standard output: ours come with the cause."""
    from ray._private import worker

    worker.print_to_stdstream = lambda *_, **__: None


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _node(address: str) -> Iterator[None]:
    """A Ray node of this machine, for as long as the context lasts."""
    folder = tempfile.mkdtemp(prefix="speedo-ray-")
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--num-cpus=1",
        f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats", "--block",
    ]  # fmt: skip
    with open(os.path.join(folder, "ray.log"), "w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 60.0
            while "Ray runtime started" not in (text := _read(log.name)):
                if process.poll() is not None or time.monotonic() > deadline:
                    last = [line for line in text.splitlines() if line.strip()][-1:] or [
                        "it said nothing"
                    ]
                    raise ClusterError(f"no Ray node could be started here: {last[0].strip()}")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _read(name: str) -> str:
    with open(name, encoding="utf-8", errors="replace") as file:
        return file.read()


def _is_this_machine(host: str) -> bool:
    """Whether an address is one of this machine's (in this network namespace)."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def wait_for_master(
    address: str, token: str, timeout_s: float, note: Callable[[str], None]
) -> None:
    """Return once a master answers at `address` and takes us; raises `ClusterError` with the reason."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    said = False
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=min(5.0, timeout_s)):
                break
        except socket.gaierror as error:
            raise ClusterError(
                f"the master's name {host!r} is not known ({error.strerror}): correct --master"
            ) from None
        except OSError:
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"no master answered at {address} within {timeout_s:.0f} s: start `speedo master --host {host} "
                    f"--port {port}` there, or correct --master"
                ) from None
            if not said:
                note(f"waiting for a master at {address}, up to {timeout_s:.0f} s")
                said = True
            time.sleep(0.3)
    _check_peer(address, token, deadline)


def _check_peer(address: str, token: str, deadline: float) -> None:
    """Compare versions and token with the master's, in a child, because Ray retries and logs natively."""
    while True:
        answer, words = _probe(address, token)
        if "InvalidAuthToken" in words or "Unauthenticated" in words:
            raise ClusterError(
                f"the master at {address} refused our token: copy the token file from the master's node "
                "(mode 0600), or set SPEEDO_TOKEN or SPEEDO_TOKEN_FILE"
            )
        if answer is not None:
            break
        if time.monotonic() >= deadline:
            raise ClusterError(
                f"what listens at {address} is no SpeeDO master, or it does not answer: "
                "correct --master"
            )
        time.sleep(0.5)
    ours = answer["ours"]
    for what, remedy in (("Ray", "pip install ray=={}"), ("Python", "use Python {} on this node")):
        theirs = answer["theirs"][what]
        same = ours[what] == theirs if what == "Ray" else _minor(ours[what]) == _minor(theirs)
        if not same:
            raise ClusterError(
                f"{what} differs: the master at {address} has {theirs}, this node {ours[what]}: "
                + remedy.format(theirs)
            )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _probe(address: str, token: str) -> tuple[dict[str, Any] | None, str]:
    environment = {**os.environ, **_environment(token)}
    child = subprocess.Popen(
        [sys.executable, "-m", "speedo.actors.probe", address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        out, words = child.communicate(timeout=20.0)
    except subprocess.TimeoutExpired:
        child.kill()
        out, words = child.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return (json.loads(lines[-1]) if lines else None), words


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())
