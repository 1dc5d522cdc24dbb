"""Hosts with a real sshd each: an address, a home, a host key and authorized_keys of their own.

A host is a network namespace of `tests.support.network`; `ip netns exec` gives each process a mount namespace as well,
in which /etc/passwd names the host's own home. So sshd, the shell and the ssh client find there what a user would have.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.forked.commands import python
from tests.support.left_behind import short_folder
from tests.support.network import ROOT, Host
from tests.support.processes import words_of

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile .ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin prohibit-password
StrictModes no
PidFile none
PrintMotd no
SetEnv PYTHONPATH={root} SPEEDO_CACHE={cache} SPEEDO_RUNTIME_DIR={folder}/runtime TMPDIR={temporary}
"""


class SshHost:
    """A host with sshd on it. `home` is the login's own."""

    def __init__(self, host: Host, folder: Path, port: int = 22) -> None:
        self.host, self.folder, self.port = host, folder, port
        self.address = host.address
        self.home = make_home(folder)
        self.temporary = str(short_folder("sh-"))  # a short name, for Ray's sockets
        self._sshd: subprocess.Popen[bytes] | None = None
        new_key(folder / "host_key")

    @property
    def host_key(self) -> str:
        """The line of known_hosts."""
        place = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        kind, key, *_ = (self.folder / "host_key.pub").read_text().split()
        return f"{place} {kind} {key}\n"

    def start(self, *mounts: tuple[Path, Path]) -> None:
        """Start sshd; each of the mounts hides the second path behind the first."""
        assert SSHD is not None
        config = self.folder / "sshd_config"
        cache = os.environ.get("SPEEDO_CACHE", str(self.folder / "cache"))
        config.write_text(
            CONFIG.format(
                port=self.port,
                address=self.address,
                folder=self.folder,
                root=ROOT,
                cache=cache,
                temporary=self.temporary,
            )
        )
        os.makedirs("/run/sshd", exist_ok=True)  # where sshd confines its unprivileged part
        with open(self.folder / "sshd.log", "wb") as log:
            self._sshd = subprocess.Popen(
                inside(self.host, self.folder, [SSHD, "-D", "-e", "-f", str(config)], mounts),
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )
        deadline = time.monotonic() + 120
        while "Server listening" not in (self.folder / "sshd.log").read_text():
            assert time.monotonic() < deadline, (self.folder / "sshd.log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        if self._sshd is not None:
            self._sshd.send_signal(signal.SIGKILL)
            self._sshd.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)


def running(host: Host) -> list[psutil.Process]:
    """All that runs on this host, but for an sshd that listens."""
    found = []
    for number in host.processes():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(number)
            words = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE and "[listener]" not in " ".join(words):
                found.append(process)
    return found


def make_home(folder: Path) -> Path:
    """A home with an empty ~/.ssh, and the /etc/passwd that says so."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    lines = Path("/etc/passwd").read_text().splitlines()
    fields = next(line for line in lines if line.split(":")[2] == "0").split(":")
    fields[5], fields[6] = str(home), "/bin/sh"
    ours = [line for line in lines if line.split(":")[2] != "0"]
    (folder / "passwd").write_text("\n".join([":".join(fields), *ours, ""]))
    return home


def inside(
    host: Host, folder: Path, words: Sequence[str], mounts: Sequence[tuple[Path, Path]] = ()
) -> list[str]:
    """A command on this host, with the home in this folder."""
    binds = [(folder / "passwd", Path("/etc/passwd")), *mounts]
    script = " && ".join(
        f"mount --bind {shlex.quote(str(a))} {shlex.quote(str(b))}" for a, b in binds
    )
    return [*host.inside, "/bin/sh", "-c", f'{script} && exec "$@"', "sh", *words]


def new_key(path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path],
        check=True,
        timeout=30,
    )


class Site:
    """The hosts, and the launcher's own machine with a user's ~/.ssh."""

    def __init__(self, network: list[Host], folder: Path) -> None:
        self._network, self.folder = network, folder
        self._launches: list[subprocess.Popen[str]] = []
        self._made: list[SshHost] = []
        self.launcher, *others = network
        (folder / "launcher").mkdir(parents=True)
        self.home = make_home(folder / "launcher")
        new_key(self.home / ".ssh" / "id_ed25519")
        self.hosts = [self.add(host, f"host{number}") for number, host in enumerate(others, 1)]
        for one in self.hosts:
            self.welcome(one)
            one.start()
        aliases = [f"Host {one.folder.name}\n    HostName {one.address}\n" for one in self.hosts]
        (self.home / ".ssh" / "config").write_text("".join(aliases))

    @property
    def addresses(self) -> list[str]:
        return [one.address for one in self.hosts]

    def add(self, host: Host, name: str, port: int = 22) -> SshHost:
        """Another sshd, not started, that knows nobody."""
        (self.folder / name).mkdir()
        self._made.append(SshHost(host, self.folder / name, port))
        return self._made[-1]

    def welcome(self, host: SshHost, *, key: bool = True, known: bool = True) -> None:
        """Let the launcher's user in there, and know the host's key."""
        if key:
            public = (self.home / ".ssh" / "id_ed25519.pub").read_text()
            (host.home / ".ssh" / "authorized_keys").write_text(public)
        if known:
            with (self.home / ".ssh" / "known_hosts").open("a") as file:
                file.write(host.host_key)

    def launch(self, words: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
        """`speedo launch`, by the user of the launcher's machine."""
        return self.python(["-m", "speedo", "launch", *words], cwd)

    def python(self, words: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
        """A program of that user's."""
        command = [python(), *words]
        process = subprocess.Popen(
            inside(self.launcher, self.folder / "launcher", command),
            cwd=cwd,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "PYTHONPATH": str(ROOT),
                "SPEEDO_CACHE": os.environ.get("SPEEDO_CACHE", str(self.folder / "cache")),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._launches.append(process)
        return process

    def left(self) -> list[str]:
        """What runs on any host but its sshd, the launcher's included."""
        return [
            f"{host.address}: {' '.join(words_of(process))[:150]}"
            for host in self._network
            for process in running(host)
        ]

    def nothing_left_within(self, seconds: float) -> list[str]:
        """What is still there after so long; empty as soon as nothing is."""
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    def close(self) -> None:
        for process in self._launches:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for one in self._made:
            one.stop()


@contextmanager
def site(network: list[Host], folder: Path) -> Iterator[Site]:
    """A launcher's machine and a host with sshd for each other member of the network."""
    if SSHD is None:
        told = "SPEEDO LAUNCH IS NOT TESTED: there is no sshd (apt-get install openssh-server)"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    made = Site(network, folder)
    try:
        yield made
    finally:
        made.close()
