"""What a master says of its run to a host that has not joined yet: `speedo doctor` compares its own with that.

The host joins with a node for a moment, and a child of this module, run by its name with HOST:PORT, asks through it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from speedo.actors.join.host_node import host_node
from speedo.actors.ray_node import session
from speedo.actors.ray_node.driver import driver
from speedo.actors.ray_node.folder import ray_folder
from speedo.actors.ray_node.private_names import take_addresses_literally

ANSWER_S: Final = 20.0
CHILD_S: Final = 60.0


def read_facts(address: str, token: str) -> tuple[dict[str, Any], float]:
    """`MasterActor.facts` of the master at `address`, and how many seconds our wall clock is ahead of its clock.

    Without a master in that cluster, or if it does not answer, the dictionary is empty. Raises `ClusterError` if this
    host cannot join.
    """
    with ExitStack() as stack:
        node, _ = stack.enter_context(
            host_node(address, token, Path(ray_folder(stack)), resources={}, environment={})
        )
        try:
            told = subprocess.run(
                [sys.executable, "-P", "-m", "speedo.actors.join.master_facts", node.gcs],
                env=session.clean_environment(token),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CHILD_S,
            )
            facts: dict[str, Any] = json.loads(told.stdout)
        except (subprocess.TimeoutExpired, ValueError):
            return {}, 0.0
        return facts, float(facts.pop("ahead"))


def main() -> None:
    """Asks the master, and prints its facts as JSON."""
    from speedo.actors.master_actor import NAME

    take_addresses_literally()
    with driver(sys.argv[1], session.NAMESPACE):
        import ray

        master: Any = ray.get_actor(NAME)
        asked = time.time()
        facts: dict[str, Any] = ray.get(master.facts.remote(), timeout=ANSWER_S)
        ahead = (asked + time.time()) / 2 - facts.pop("clock")
        print(json.dumps({**facts, "ahead": ahead}), flush=True)


if __name__ == "__main__":
    main()
