"""A headless Chromium that opens a page as a user would, and what the tests ask it: errors, drawings, pictures."""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

Scheme = Literal["light", "dark"]

_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # Chromium refuses its sandbox to root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
# Every drawing of the page that is shown: its size, and how much is drawn in it.
_DRAWINGS: Final = """
return Array.from(document.querySelectorAll('svg, canvas')).filter(
  (drawing) => drawing.checkVisibility() && !drawing.parentElement.closest('svg')
).map((drawing) => {
  const box = drawing.getBoundingClientRect();
  const marks = drawing.querySelectorAll('path, polyline, line, circle, rect, use').length;
  return {name: drawing.id || drawing.getAttribute('aria-label') || '', width: box.width,
          height: box.height, marks: marks, kind: drawing.tagName.toLowerCase()};
});
"""


@dataclass(frozen=True)
class Drawing:
    """An SVG or a canvas: its id or label, its size in CSS pixels, the shapes in it (0 for a canvas)."""

    name: str
    kind: str
    width: float
    height: float
    marks: int


class Browser:
    """One tab. `driver` is Selenium's, for what has no method here."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, address: str | Path) -> None:
        """Open a URL or a file, and wait until it is loaded. Errors of the page before are forgotten."""
        self.errors()
        self.driver.get(address.resolve().as_uri() if isinstance(address, Path) else address)

    def errors(self) -> list[str]:
        """What the console has as error or warning since the last call; a broken policy or link is one, too."""
        return [
            f"{line['level']}: {line['message']}"
            for line in self.driver.get_log("browser")  # type: ignore[no-untyped-call]
            if line["level"] in ("SEVERE", "WARNING")
        ]

    def ask(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns (`return document.title`)."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str, seconds: float = 20.0) -> Any:
        """The value of an expression once it is true. TimeoutException, with the expression, after `seconds`."""
        return WebDriverWait(self.driver, seconds, poll_frequency=0.1).until(
            lambda driver: driver.execute_script(f"return ({script})"),
            f"{script!r} was not true for {seconds:g} s",
        )

    def text(self) -> str:
        """What a reader sees."""
        return str(self.ask("return document.body.innerText"))

    def drawings(self) -> list[Drawing]:
        """Every SVG and canvas that is shown."""
        return [Drawing(**one) for one in self.ask(_DRAWINGS)]

    def scheme(self, scheme: Scheme) -> None:
        """Light or dark, as a reader's system would ask for by prefers-color-scheme."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def size(self, width: int, height: int = 900, phone: bool = False) -> None:
        """The window in CSS pixels; `phone`: with a phone's viewport and touch."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone},
        )

    def screenshot(self, path: Path) -> Path:
        """The whole page, also below the window, as a PNG."""
        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True}
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def overflow(self) -> int:
        """CSS pixels by which the page is wider than its window; 0 where nobody scrolls sideways."""
        return int(
            self.ask("return document.documentElement.scrollWidth")
            - self.ask("return document.documentElement.clientWidth")
        )


@contextmanager
def chromium(width: int = 1200, height: int = 900) -> Iterator[Browser]:
    """A Chromium with a profile of its own, which ends with it.

    AssertionError, with what to install, where there is no Chromium: no test of a page passes unseen.
    """
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert browser is not None, "chromium is not installed: apt-get install chromium"
    assert driver is not None, "chromedriver is not installed: apt-get install chromium-driver"
    with tempfile.TemporaryDirectory(
        prefix="speedo-chromium-", ignore_cleanup_errors=True
    ) as profile:
        options = ChromeOptions()
        options.binary_location = browser
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        try:
            started = Chrome(options=options, service=Service(driver))
        except WebDriverException as error:
            raise AssertionError(f"Chromium did not start: {error.msg}") from error
        try:
            started.set_page_load_timeout(60)
            yield Browser(started)
        finally:
            started.quit()
