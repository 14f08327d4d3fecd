"""A dashboard as a real process, and pages of it in a headless Chromium."""

import contextlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import Deadline
from processes import ROOT

_CHROMIUM = shutil.which("chromium")


class Dashboard:
    """A dashboard that is running; `address` ends in a slash."""

    def __init__(self, *flags: str, program: str = "run_experiment_mm_raw.py"):
        """Start it, and wait until it has printed its address."""
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / program), "--dashboard", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", line)
        if not found:
            self.end()
            raise AssertionError(f"the dashboard printed no address: {line}")
        self.address = found[0]

    def get(self, path: str) -> str:
        """Return what it answers at a path."""
        with urllib.request.urlopen(self.address + path, timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def peak_mib(self) -> float:
        """Return the most memory that it has ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def shown(*flags: str, program: str = "run_experiment_mm_raw.py") -> Iterator[Dashboard]:
    """Run a dashboard for the time of a `with` block."""
    dashboard = Dashboard(*flags, program=program)
    try:
        yield dashboard
    finally:
        dashboard.end()


class Browser:
    """A headless Chromium, whose pages must not report an error on the console."""

    def __init__(self, chromium: Any):
        self._chromium, self.errors = chromium, list[str]()
        self._contexts: list[Any] = []

    def open(self, address: str, wait_for: str = "main h1", **options: Any) -> Any:
        """Open a page, by default as wide as a laptop's, and wait until an element is there."""
        context = self._chromium.new_context(
            **{"viewport": {"width": 1440, "height": 900}, **options}
        )
        self._contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note)
        page.on("dialog", lambda dialog: self.errors.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: self._check_host(request.url))
        page.goto(address)
        page.wait_for_selector(wait_for)
        return page

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _check_host(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.errors.append(f"a request to {url}")

    def close(self) -> None:
        """Close all pages."""
        while self._contexts:
            self._contexts.pop().close()


@contextlib.contextmanager
def started_chromium() -> Iterator[Any]:
    """Run Chromium; skip the test where it or its driver is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not _CHROMIUM:
        pytest.skip("there is no chromium: `apt-get install chromium` installs it")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def wait_until(condition: Any, seconds: float, what: str) -> None:
    """Wait until a condition holds; fail after these seconds, more on a busy machine."""
    deadline = Deadline(seconds)
    while not condition():
        assert not deadline.is_over(), what
        time.sleep(0.1)
