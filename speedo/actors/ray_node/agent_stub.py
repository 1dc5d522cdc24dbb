"""Replaces Ray's two agents, which serve its dashboard and its per-task environments. SpeeDO uses neither.

A raylet does not run without its two agents: Python programs of about 80 MB each, some with listeners on every
address, which start at the same time as the processes of a run. Here a shell takes their place: it reports to the
raylet that there are no such ports, and ends when the raylet closes the shell's input.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from speedo.actors.ray_node import private

_AGENTS: Final = (private.find("dashboard_agent"), private.find("runtime_env_agent"))
# Called as the agents are: the program's file, then options as --NAME=VALUE. A shell unblocks signals; so it ignores
# those that are sent to all processes of a run.
_SCRIPT: Final = """
trap '' HUP INT QUIT TERM
for option; do
    case $option in
    --node-id=*) node=${option#*=} ;;
    --session-dir=*) session=${option#*=} ;;
    esac
done
case $1 in
*runtime_env*) ports=runtime_env_agent_port ;;
*) ports="metrics_agent_port metrics_export_port dashboard_agent_listen_port" ;;
esac
for port in $ports; do
    printf %s -1 >"$session/$port.part"
    mv "$session/$port.part" "$session/${port}_$node"
done
exec cat >/dev/null
"""


@contextmanager
def idle_agents(folder: str) -> Iterator[None]:
    """A node that is started inside this context, with its files in `folder`, gets the stubs instead of agents."""
    script = Path(folder) / "agent.sh"
    script.write_text(_SCRIPT)
    usual: Any = private.find("command_of_agents")
    services: Any = private.find("services")

    def command(component: str, *arguments: Any, **options: Any) -> list[str]:
        if component in _AGENTS:
            return ["/bin/sh", str(script)]
        built: list[str] = usual(component, *arguments, **options)
        return built

    services._build_python_executable_command_memory_profileable = command
    try:
        yield
    finally:
        services._build_python_executable_command_memory_profileable = usual
