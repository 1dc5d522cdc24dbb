"""What stands between us and our Redis server: its keeper, and the server's configuration.

The keeper is a small shell (`start_keeper`). Once our process has ended, it kills the server, waits for it
and removes the directory. A server that ends before that is started again, empty, with the users that it
last saved, after pauses of 0.2 s growing to 5 s. Where `setpriv` is installed, which is part of Debian's
base, the kernel ends the server with a keeper that is killed.

In the directory: `redis.conf` and `users.acl`, which hold no password but its hash; `child`, the
process to kill; `started`, which we make once the server answers; `exit`, its status when it ended;
`over`, once the pipe is closed. Each side makes its own mark before it looks for the other's, so
none is missed.
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
    """Configuration and users, for their owner's eyes; with `tls` the certificate lies there.

    A connection that is silent for a minute is closed; a member's opens again by itself.
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
