"""The keeper process of a private Redis server, and the server's configuration.

The keeper is a small shell (`start_keeper`). When our process has ended, it kills the server, waits for it and
removes the directory. If the server ends before that, the keeper restarts it, empty, with the users that it last
saved, after pauses of 0.2 s growing to 5 s. If the keeper is killed, the kernel ends the server, provided that
`setpriv` is installed (part of Debian's base).

Files in the directory: `redis.conf` and `users.acl`, which hold no password but its hash; `child`, the process to
kill; `started`, which we create once the server answers; `exit`, its status when it ended; `over`, created when the
pipe is closed. Each side writes its own file before it looks for the other's, so no event is missed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from speedo.storage.redis.certificate import CERTIFICATE, KEY
from speedo.storage.redis.users import acl_file

CONFIG: Final = "redis.conf"
USERS: Final = "users.acl"

KEEPER: Final = """
cd "$1" || exit 1
exec 3<&0
{ read -r _ <&3; touch over || kill -KILL 0; kill -KILL "$(cat child)"; } 2>/dev/null &
await() {
    echo "$1" >child
    [ ! -e over ] || kill -KILL "$1"
    wait "$1"
    status=$?
    : >child
}
tie="setpriv --pdeathsig KILL"
$tie true 2>/dev/null || tie=""
pause=0.2
while :; do
    born=$(date +%s)
    $tie "$2" "$1/redis.conf" </dev/null 3<&- >log 2>&1 &
    await $!
    echo "$status" >exit
    if [ -e over ] || [ ! -e started ]; then break; fi
    if [ $(($(date +%s) - born)) -ge 10 ]; then pause=0.2; fi
    sleep "$pause" </dev/null 3<&- &
    await $!
    if [ -e over ]; then break; fi
    case $pause in 0.2) pause=0.5 ;; 0.5) pause=1 ;; 1) pause=2 ;; *) pause=5 ;; esac
    rm -f exit
done
wait
"""
_CONFIG: Final = """
bind {host}
port {plain_port}
protected-mode yes
daemonize no
dir "{directory}"
pidfile "{directory}/pid"
aclfile "{directory}/{users}"
logfile ""
save ""
appendonly no
maxmemory {maxmemory}
maxmemory-policy noeviction
client-output-buffer-limit normal 256mb 128mb 60
maxclients {max_clients}
tcp-keepalive 60
timeout 60
"""
_TLS: Final = """
tls-port {port}
tls-cert-file "{directory}/{certificate}"
tls-key-file "{directory}/{key}"
tls-ca-cert-file "{directory}/{certificate}"
tls-auth-clients no
tls-protocols "TLSv1.2 TLSv1.3"
"""
_SOCKET: Final = """
unixsocket "{directory}/socket"
unixsocketperm 700
"""


def write_config(
    directory: Path,
    *,
    host: str,
    port: int,
    password: str,
    maxmemory_bytes: int,
    tls: bool,
    unix_socket: bool,
    max_clients: int,
) -> None:
    """Write configuration and users, readable by their owner alone; with `tls` the certificate is in that directory.

    The server closes a connection that is silent for a minute; a member's is opened again automatically.
    """
    text = _CONFIG + (_TLS if tls else "") + (_SOCKET if unix_socket else "")
    config = text.format(
        host=host,
        port=port,
        plain_port=0 if tls else port,
        directory=directory,
        users=USERS,
        maxmemory=maxmemory_bytes,
        max_clients=max_clients,
        certificate=CERTIFICATE,
        key=KEY,
    )
    for name, content in ((CONFIG, config), (USERS, acl_file(password))):
        (directory / name).touch(mode=0o600)
        (directory / name).write_text(content)
