"""The commands of the system's OpenSSH client, and what its errors mean.

Keys, known_hosts and ssh_config are the user's own. Nothing is ever asked, and no unknown host key is accepted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from speedo.launch.cluster import HostAccess, is_here
from speedo.launch.protocol import COMMAND, own_speedo

CONNECT_S: Final = 10
OPTIONS: Final = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": str(CONNECT_S),
    "ConnectionAttempts": "1",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "4",
    "ControlMaster": "no",  # the user's own is used if it is there, and never left behind
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "Tunnel": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",  # of the user's ssh_config, which would take the place of ours
    "UpdateHostKeys": "no",  # a host adds none to known_hosts
    "RequestTTY": "no",
    "LogLevel": "ERROR",
}
_CHANGED: Final = re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED")
_OFFENDING: Final = re.compile(r"Offending (?:\S+ )?key in (\S+?):?(\d+)?\s*$", re.MULTILINE)
_UNKNOWN: Final = re.compile(r"No (\S+) host key is known for")


def host_command(name: str, access: HostAccess, ssh_config: str | None) -> list[str]:
    """The command that connects to the host's end of `speedo launch`; of this machine without ssh."""
    if is_here(name):
        return own_speedo(COMMAND)
    words = ["ssh", "-T"]
    if ssh_config:
        words += ["-F", ssh_config]
    for key, value in OPTIONS.items():
        words += ["-o", f"{key}={value}"]
    if access.ssh_key:
        words += ["-i", access.ssh_key, "-o", "IdentitiesOnly=yes"]
    if access.ssh_port:
        words += ["-p", str(access.ssh_port)]
    if access.username:
        words += ["-l", access.username]
    return [*words, "--", name, f"exec {speedo_there(access)} {COMMAND}"]


def speedo_there(access: HostAccess) -> str:
    """SpeeDO's command as the host's shell reads it."""
    if not access.virtualenv:
        return "speedo"
    path = f"{access.virtualenv.rstrip('/')}/bin/speedo"
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}'
    return shlex.quote(path)


def cause(name: str, access: HostAccess, status: int, errors: Sequence[str]) -> str:
    """Why a connection ended before the host's end of it answered: the cause and the remedy."""
    text = "\n".join(errors)
    last = next((line.strip() for line in reversed(errors) if line.strip()), "")
    if is_here(name):
        return f"SpeeDO did not start here: {last or f'status {status}'}"
    if _CHANGED.search(text):
        found = _OFFENDING.search(text)
        where = f" (line {found[2]} of {found[1]})" if found and found[2] else ""
        return (
            f"it has another host key than known_hosts says{where}: make sure that it is the right machine, then "
            f"`ssh-keygen -R {name}` and connect once with `ssh {name}`"
        )
    if "Host key verification failed" in text or _UNKNOWN.search(text):
        return (
            f"its host key is not known here: connect once with `ssh {name}`, and compare the key"
        )
    if "Permission denied" in text or "Too many authentication failures" in text:
        who = f" of {access.username}" if access.username else ""
        return (
            f"it refuses the key{who} ({_short(last)}): name another with ssh_key, or add its public half to "
            "~/.ssh/authorized_keys there (`ssh-copy-id`)"
        )
    if status == 255:
        told = _short(last) or "ssh ended without a word"
        return f"it cannot be reached ({told}): check its name, address, ssh_port and that sshd runs there"
    if status in (126, 127):
        place = access.virtualenv or "the PATH of its login"
        return f"SpeeDO is not in {place} there ({last}): install it, or name its virtual environment with virtualenv"
    if "No such command" in text or "no such command" in text:
        return "its SpeeDO is older than this one: install the same version everywhere"
    return f"SpeeDO did not start there (status {status}): {last or 'no word of why'}"


def _short(text: str) -> str:
    """ssh's own sentence without the host at its beginning."""
    return text.removeprefix("ssh: ").rstrip(".\r")
