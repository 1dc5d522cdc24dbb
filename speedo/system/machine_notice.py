"""Notices that a cloud takes a machine away (a spot, preemptible or low-priority one), polled by `--leave-on`.

AWS: EC2 user guide, "Spot Instance interruption notices" (instance metadata service, version 2). Google: Compute
Engine, "Handle preemption". Azure: "Scheduled Events for Linux virtual machines". All answer at a link-local address.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

EVERY_S: Final = 2.0  # Google and Azure give 30 s from the notice on
ANSWER_S: Final = 5.0
MOST_BYTES: Final = 1 << 20
METADATA: Final = "http://169.254.169.254"
CLOUDS: Final = ("aws", "azure", "google")


@contextmanager
def noticed(cloud: str, told: Callable[[str], None], note: Callable[[str], None]) -> Iterator[None]:
    """Inside the context `told` hears by whom the first notice is, once, in another thread; see `has_notice`."""
    over = threading.Event()

    def poll() -> None:
        trouble = ""
        while not over.wait(EVERY_S):
            try:
                if has_notice(cloud):
                    return told(f"a notice of {cloud}")
                trouble = ""
            except (OSError, ValueError) as error:
                former, trouble = trouble, f"{cloud} does not say whether this machine ends"
                if not former:
                    note(f"warning: {trouble}, and is asked again and again: {error}")

    threading.Thread(target=poll, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def has_notice(cloud: str) -> bool:
    """Whether one of the `CLOUDS` takes this machine away, or a URL has a page. Raises `OSError`, `ValueError`."""
    if cloud == "aws":
        token = _page("/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        own = {"X-aws-ec2-metadata-token": token}
        return bool(_page("/latest/meta-data/spot/instance-action", headers=own))
    if cloud == "azure":
        place = "/metadata/scheduledevents?api-version=2020-07-01"
        events = json.loads(_page(place, headers={"Metadata": "true"}) or "{}").get("Events", ())
        return any(one.get("EventType") in ("Preempt", "Terminate") for one in events)
    place = "/computeMetadata/v1/instance/preempted" if cloud == "google" else cloud
    return _page(place, headers={"Metadata-Flavor": "Google"}).lower() not in ("", "false")


def _page(place: str, method: str = "GET", headers: dict[str, str] | None = None) -> str:
    """The words of a page; empty if it is not there."""
    url = place if "://" in place else METADATA + place
    asked = Request(url, method=method, headers=headers or {})
    try:  # a proxy has other metadata
        with build_opener(ProxyHandler({})).open(asked, timeout=ANSWER_S) as page:
            return str(page.read(MOST_BYTES).decode(errors="replace")).strip()
    except HTTPError as error:
        if error.code not in (404, 410):
            raise
        return ""
