"""SFTP with the user's own SSH settings: keys, agent, known hosts. A host whose key is not known is refused."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

KEEPALIVE_S: Final = 10
TIMEOUT_S: Final = 20.0  # for one answer


class CheckedSftp(SFTPFileSystem):  # type: ignore[misc]
    """fsspec's own takes any host key; here it must be in a known_hosts file, as for `ssh`."""

    cachable = False

    def _connect(self) -> None:
        client = paramiko.SSHClient()
        client.load_system_host_keys()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        client.connect(self.host, **self.ssh_kwargs)
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(KEEPALIVE_S)
        self.client = client
        self.ftp = client.open_sftp()
        channel = self.ftp.get_channel()
        assert channel is not None
        channel.settimeout(TIMEOUT_S)


def open_sftp(uri: str) -> tuple[CheckedSftp, str]:
    """The file system and the path; what the URI does not say is taken from ~/.ssh/config."""
    parts = urlsplit(uri)
    host = parts.hostname or ""
    said = _settings(host)
    options: dict[str, Any] = {
        "port": parts.port or int(said.get("port", 22)),
        "username": unquote(parts.username or "") or said.get("user") or getpass.getuser(),
        "timeout": TIMEOUT_S,
        "banner_timeout": TIMEOUT_S,
        "auth_timeout": TIMEOUT_S,
    }
    if said.get("identityfile"):
        options["key_filename"] = said["identityfile"]
    return CheckedSftp(said.get("hostname", host), **options), unquote(parts.path) or "/"


def _settings(host: str) -> Any:
    file = Path("~/.ssh/config").expanduser()
    if not file.is_file():
        return {}
    return paramiko.SSHConfig.from_path(str(file)).lookup(host)
