"""Stores of files on loopback, each a real server in a process of its own: S3 (moto), SFTP (sshd), HTTP."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.commands import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Site(Protocol):
    """A store that can be away for a while, with what it has."""

    uri: str

    def start(self) -> None: ...

    def stop(self) -> None: ...


class _Server:
    """A process that listens at `port`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        if self._process is not None:
            return
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        end = time.monotonic() + 120
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class S3(_Server):
    """moto's server keeps nothing on the disk; to be away it is stopped behind a forwarder that refuses connections."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.door = Forwarder(self.port)
        self.uri = ""

    def new_folder(self) -> None:
        self.uri = f"s3://bucket/folder-{secrets.token_hex(4)}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def start(self) -> None:
        if self._process is None:
            super().start()
            import botocore.session

            self.door.open()
            client = botocore.session.get_session().create_client("s3")
            client.create_bucket(Bucket="bucket")
        else:
            self.door.open()

    def stop(self) -> None:
        self.door.close()

    def end(self) -> None:
        self.door.close()
        super().stop()


class Forwarder:
    """A port of loopback that leads to another, and that can be closed and opened."""

    def __init__(self, to: int) -> None:
        self._to, self.port = to, free_port()
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []

    def open(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        while self._open:
            one = self._open.pop()
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
        back.start()
        self._pass(near, far)
        back.join()
        for one in (near, far):
            one.close()
            with suppress(ValueError):  # all are being closed
                self._open.remove(one)

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class Sftp(_Server):
    """sshd with a key, a home and a known_hosts file made for the test."""

    def __init__(self, folder: Path, home: Path) -> None:
        super().__init__(folder)
        self.home = home
        self.uri = ""
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        for key in (folder / "host_key", home / ".ssh" / "id_ed25519"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key], check=True
            )
        kind, text, *_ = (folder / "host_key.pub").read_text().split()
        (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {kind} {text}\n")
        shutil.copy(home / ".ssh" / "id_ed25519.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPidFile none\n"
            "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
        )

    def new_folder(self) -> None:
        place = self.folder / secrets.token_hex(4)
        place.mkdir()
        self.uri = f"sftp://{getpass.getuser()}@127.0.0.1:{self.port}{place}"

    def command(self) -> list[str]:
        assert SSHD, "openssh-server is missing: make setup installs it"
        Path("/run/sshd").mkdir(exist_ok=True)
        return [SSHD, "-D", "-e", "-f", f"{self.folder}/sshd_config"]

    def stop(self) -> None:
        """With the connections, which have sessions of their own."""
        if self._process is not None:
            import psutil

            children = psutil.Process(self._process.pid).children(recursive=True)
            super().stop()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


class Http(_Server):
    """Python's own web server over `folder`."""

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(self.port)]


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    server = S3(tmp_path_factory.mktemp("s3"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.door.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        try:
            server.start()
            yield server
        finally:
            server.end()


@pytest.fixture(scope="module")
def sftp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sftp]:
    folder = tmp_path_factory.mktemp("sftp")
    server = Sftp(folder, folder / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(server.home))
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture
def s3(s3_server: S3) -> Iterator[S3]:
    """The server, with a folder of this test's own."""
    s3_server.new_folder()
    yield s3_server
    s3_server.start()


@pytest.fixture
def sftp(sftp_server: Sftp) -> Iterator[Sftp]:
    """The server, with a folder of this test's own."""
    sftp_server.new_folder()
    yield sftp_server
    sftp_server.start()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Http]:
    (tmp_path / "http").mkdir()
    server = Http(tmp_path / "http")
    try:
        server.start()
        yield server
    finally:
        server.stop()
