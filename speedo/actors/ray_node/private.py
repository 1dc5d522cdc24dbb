"""All that is taken from Ray's private modules, by name: Ray promises none of it, so any version may lack some.

What is not there is `None`; `lacking` names it. Then a run uses Ray's public way (`public_node`), with what that costs.
"""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any, Final

# Our name for it, Ray's module, and the path in there.
NAMES: Final = {
    # a node without dashboard, agents, monitor and log monitor
    "Node": ("ray._private.node", "Node"),
    "start_api_server": ("ray._private.node", "Node.start_api_server"),
    "kill_all_processes": ("ray._private.node", "Node.kill_all_processes"),
    "dead_processes": ("ray._private.node", "Node.dead_processes"),
    "RayParams": ("ray._private.parameter", "RayParams"),
    "services": ("ray._private.services", ""),
    "command_of_agents": (
        "ray._private.services",
        "_build_python_executable_command_memory_profileable",
    ),
    "console_popen": ("ray._private.services", "ConsolePopen"),
    "resolve_ip": ("ray._private.services", "resolve_ip_for_localhost"),
    "dashboard_agent": ("ray._private.ray_constants", "PROCESS_TYPE_DASHBOARD_AGENT"),
    "runtime_env_agent": ("ray._private.ray_constants", "PROCESS_TYPE_RUNTIME_ENV_AGENT"),
    # what actors import, and from where
    "working_dir_of_job": ("ray.job_config", "JobConfig._runtime_env_has_working_dir"),
    # the token
    "Config": ("ray._raylet", "Config"),
    "TokenLoader": ("ray._raylet", "AuthenticationTokenLoader"),
    "AuthenticationMode": ("ray._raylet", "AuthenticationMode"),
    "authentication_mode": ("ray._raylet", "get_authentication_mode"),
    # Ray's own words about dead workers
    "worker": ("ray._private.worker", ""),
    "print_to_stdstream": ("ray._private.worker", "print_to_stdstream"),
    # a master's facts and versions, before a node joins
    "GcsClient": ("ray._raylet", "GcsClient"),
    "get_cluster_metadata": ("ray._common.usage.usage_lib", "get_cluster_metadata"),
    "internal_kv_put": ("ray.experimental.internal_kv", "_internal_kv_put"),
}


def find(name: str) -> Any:
    """What Ray has under our name for it; None if this Ray has it not."""
    module, path = NAMES[name]
    try:
        found: Any = importlib.import_module(module)
        return reduce(getattr, filter(None, path.split(".")), found)
    except (ImportError, AttributeError):
        return None


def lacking() -> list[str]:
    """What this Ray has not, as Ray calls it."""
    return [".".join(filter(None, NAMES[name])) for name in NAMES if find(name) is None]
