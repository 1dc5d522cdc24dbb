"""What is taken from Ray's private modules, in the process that starts a node or joins one of ours.

Ray replaces 127.0.0.1 by an address of the machine, and would listen on every interface also for a run of one machine.
Its raylet starts two agents, for metrics, logs and runtime environments, none of which a run uses, and ends when one of
them ends; without agents it does not start. `cat` stands in for them: it waits for the end of its input, a pipe of the
raylet's. Each actor's process imports packages that it does not use: a program of ours starts Ray's without them
(`actor_process.py`), and no message of ours has an object of those packages that Ray would serialize in ways of its
own. A Ray that has these functions under other names does all that; the first, with the token, is said.
"""

from __future__ import annotations

import importlib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

MODULE: Final = "ray._private.services"
RESOLVE: Final = "resolve_ip_for_localhost"
START: Final = "start_ray_process"
ADDONS: Final = "ray.util.serialization_addons"
APPLY: Final = "apply"
# Of a raylet: the commands of its agents, with what stands in for them (Ray adds arguments), and the agents' ports, for
# which it would wait. Those of an agent that does not serve are -1; nobody calls the other one.
_STAND_IN: Final = 'sh -c "exec cat" speedo-stand-in'
_COMMANDS: Final = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
_PORTS: Final = (
    *(
        f"--{name}=-1"
        for name in ("metrics-agent-port", "metrics_export_port", "dashboard_agent_listen_port")
    ),
    "--runtime_env_agent_port=1",
)
# In a raylet's environment
PIPED: Final = {"RAY_enable_pipe_based_agent_to_parent_health_check": "1"}
# Of a raylet: the command of an actor's process. A path with blanks is quoted there, and left as it is.
_ACTORS: Final = "--python_worker_command="
_RAYS_PROGRAM: Final = re.compile(r"(?<= )\S+/default_worker\.py(?= )")


def take_addresses_literally() -> bool:
    """Keep Ray, in this process, from replacing 127.0.0.1; whether that could be done."""
    return _replaced(MODULE, RESOLVE, lambda former: lambda host: host)


def leave_addons_out() -> bool:
    """Keep Ray, in this process, from importing the packages whose objects it would serialize in ways of its own;
    whether that could be done."""
    return _replaced(ADDONS, APPLY, lambda former: lambda context: None)


def start_lean_nodes() -> bool:
    """Have a raylet that this process starts run without agents, and its actors with our program; whether that could
    be done."""

    def lean(former: Any) -> Any:
        def start(command: Sequence[str], *arguments: Any, **options: Any) -> Any:
            return former(_lean(command), *arguments, **options)

        return start

    return _replaced(MODULE, START, lean)


def note() -> str:
    """What a run on loopback says where its addresses cannot be taken literally."""
    return (
        f"note: this Ray has no {MODULE}.{RESOLVE}, which keeps it on 127.0.0.1: it listens on every address of this "
        "machine, for those who have the token"
    )


def _lean(command: Sequence[str]) -> list[str]:
    """The command of one of Ray's processes; a raylet's is changed."""
    if not any(word.startswith(_COMMANDS) for word in command):
        return list(command)
    return [*map(_with_our_programs, command), *_PORTS]


def _with_our_programs(word: str) -> str:
    if word.startswith(_ACTORS):
        ours = subprocess.list2cmdline([str(Path(__file__).with_name("actor_process.py"))])
        return _RAYS_PROGRAM.sub(lambda found: f"{ours} {found[0]}", word)
    return next((option + _STAND_IN for option in _COMMANDS if word.startswith(option)), word)


def _replaced(module: str, name: str, made: Any) -> bool:
    try:
        private: Any = importlib.import_module(module)
        former = getattr(private, name)
    except (ImportError, AttributeError):
        return False
    setattr(private, name, made(former))
    return True
