"""All keys that SpeeDO writes to a store, and which key or head no store accepts.

All keys of a run begin with `speedo:{run}:`, so that several runs can share one server, and a run can be
removed by its prefix.
"""

from __future__ import annotations

from typing import Final

from speedo.errors import PayloadError, StoreError

MAX_HEAD_BYTES: Final = 4096


def prefix(run: str) -> str:
    """The prefix of all keys of this run."""
    return f"speedo:{run}:"


def epoch_of(run: str, key: str) -> int:
    """The epoch of the master whose keyspace, `RUN:EPOCH`, this key is in; -1 if it is in none."""
    epoch = key.removeprefix(prefix(run)).partition(":")[0]
    return int(epoch) if key.startswith(prefix(run)) and epoch.isdecimal() else -1


def center(run: str, version: int) -> str:
    """The merged weights of one version."""
    return f"speedo:{run}:center:{version}"


def centers(run: str) -> str:
    """The prefix of the keys of all versions of the center."""
    return f"speedo:{run}:center:"


def rounded(run: str, version: int) -> str:
    """One version of the merged weights in the form that workers fetch, if that is not the exact one."""
    return f"speedo:{run}:center:{version}:rounded"


def copy(run: str, start: int, version: int) -> str:
    """A copy of one version of the range that begins at value `start`, in the memory of a host."""
    return f"speedo:{run}:copy:{start}:{version}"


def copies(run: str, start: int) -> str:
    """The prefix of the copies of this range."""
    return f"speedo:{run}:copy:{start}:"


def history(run: str, version: int) -> str:
    """A server's part of the solver's history, beside its center of this version."""
    return f"speedo:{run}:history:{version}"


def rule_state(run: str, version: int) -> str:
    """What the merge rule keeps beside the center, or a server's range of it, of this version."""
    return f"speedo:{run}:rule-state:{version}"


def payload(run: str, worker: int, ticket: int) -> str:
    """The payload of one worker for one ticket: a delta, weights or a gradient."""
    return f"speedo:{run}:payload:{worker}:{ticket}"


def payloads(run: str, worker: int) -> str:
    """The prefix of the payload keys of one worker."""
    return f"speedo:{run}:payload:{worker}:"


def state(run: str, worker: int, version: int) -> str:
    """The solver history of one worker, beside the center of one version."""
    return f"speedo:{run}:state:{worker}:{version}"


def states(run: str, worker: int) -> str:
    """The prefix of the state keys of one worker."""
    return f"speedo:{run}:state:{worker}:"


def collective(run: str, worker: int, among: str) -> str:
    """Where a worker is reached by the other hosts of these members, or why it has left them."""
    return f"speedo:{run}:collective:{worker}:{among}"


def collectives(run: str, worker: int | None = None) -> str:
    """The prefix of these keys of one worker, or of all."""
    return f"speedo:{run}:collective:" + ("" if worker is None else f"{worker}:")


def probe(run: str) -> str:
    """The key that the master writes to check that the store accepts writes."""
    return f"speedo:{run}:probe"


def epoch(run: str) -> str:
    """The epoch of the run's master: what may be written by one that has a lease depends on it."""
    return f"speedo:{run}:epoch"


def lease(run: str) -> str:
    """Who has the run at present; it expires."""
    return f"speedo:{run}:lease"


def journal(run: str) -> str:
    """The journal's entry for the newest version that can be seen."""
    return f"speedo:{run}:journal"


def former_entry(run: str, place: int) -> str:
    """One of the latest entries of the journal."""
    return f"speedo:{run}:journal:{place}"


def standby(run: str) -> str:
    """The note of the standby that follows a run."""
    return f"speedo:{run}:standby"


def parcel(run: str, standby: str, number: int) -> str:
    """A part of the run directory on its way to a standby."""
    return f"speedo:{run}:parcel:{standby}:{number}"


def pattern(prefix: str) -> str:
    """Redis's glob pattern for the keys that begin with `prefix`, in which its special characters are escaped."""
    return "".join(f"\\{c}" if c in "*?[]^\\" else c for c in prefix) + "*"


def check_blob(key: str, head: bytes) -> None:
    """Refuse a key (`StoreError`) or a head (`PayloadError`) that no store accepts."""
    if not key or "#" in key:
        raise StoreError(
            f"{key!r} cannot be a key: it must not be empty, and '#' marks parts of a blob"
        )
    if len(head) > MAX_HEAD_BYTES:
        raise PayloadError(f"a head has at most {MAX_HEAD_BYTES} bytes, this one {len(head)}")
