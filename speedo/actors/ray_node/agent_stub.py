"""What stands in for Ray's agents, which serve its dashboard and environments per task: we use neither.

A raylet does not start, nor live, without its two agents: Python programs of some 80 MB each, with listeners, some of
them on every address, that begin together with a run's own processes. In their place a shell tells the raylet that
there are no such ports, and waits for the end of its input, which the raylet holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ray._private import ray_constants, services

_AGENTS: Final = (
    ray_constants.PROCESS_TYPE_DASHBOARD_AGENT,
    ray_constants.PROCESS_TYPE_RUNTIME_ENV_AGENT,
)
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
    """A node that is started in here, with its files in the folder, has no agents but these."""
    script = Path(folder) / "agent.sh"
    script.write_text(_SCRIPT)
    usual: Any = services._build_python_executable_command_memory_profileable

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
