"""Every key that SpeeDO writes to a store, in one place.

All keys of a run begin with `speedo:{run}:`, so that several runs share one server, and a run is
removed by its prefix.
"""

from __future__ import annotations


def prefix(run: str) -> str:
    """What every key of this run begins with."""
    return f"speedo:{run}:"


def center(run: str, version: int) -> str:
    """The merged weights of one version."""
    return f"speedo:{run}:center:{version}"


def centers(run: str) -> str:
    """What the key of every version of the center begins with."""
    return f"speedo:{run}:center:"


def rounded(run: str, version: int) -> str:
    """The merged weights of one version in the form that workers fetch, where that is not the exact one."""
    return f"speedo:{run}:center:{version}:rounded"


def payload(run: str, worker: int, ticket: int) -> str:
    """What one worker made of one ticket: a delta, weights or a gradient."""
    return f"speedo:{run}:payload:{worker}:{ticket}"


def payloads(run: str, worker: int) -> str:
    """What every payload key of one worker begins with."""
    return f"speedo:{run}:payload:{worker}:"


def state(run: str, worker: int, version: int) -> str:
    """What one worker's solver remembers, beside the center of one version."""
    return f"speedo:{run}:state:{worker}:{version}"


def states(run: str, worker: int) -> str:
    """What every state key of one worker begins with."""
    return f"speedo:{run}:state:{worker}:"


def probe(run: str) -> str:
    """What the master writes to see whether the store takes it."""
    return f"speedo:{run}:probe"


def pattern(prefix: str) -> str:
    """Redis's glob for the keys that begin with `prefix`, whose own characters stand for themselves."""
    return "".join(f"\\{c}" if c in "*?[]^\\" else c for c in prefix) + "*"
