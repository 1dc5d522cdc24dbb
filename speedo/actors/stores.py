"""The store as workers and tester use it: they wait while it is away, and say so in their logs."""

from __future__ import annotations

import sys
from collections.abc import Callable

from speedo.settings import RunSettings
from speedo.storage.patient_store import PatientStore
from speedo.storage.redis_store import RedisStore


def _tell(trouble: str | None) -> None:
    print("the store is back" if trouble is None else f"waiting: {trouble}", file=sys.stderr)


def patient_store(
    url: str, settings: RunSettings, on_trouble: Callable[[str | None], None] = _tell
) -> PatientStore:
    """The store at a user's own URL, with the patience of the run's timeout."""
    store = RedisStore(url, ca_pem=settings.redis_ca)
    return PatientStore(store, patience_s=settings.timeout_s, on_trouble=on_trouble)
