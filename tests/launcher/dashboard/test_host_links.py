"""Connections to hosts that nobody else sees: when they begin, and that they always end."""

import subprocess
import sys

import pytest

from launcher.dashboard import host_links
from launcher.dashboard.host_links import HostLinks

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def links(monkeypatch):
    monkeypatch.setattr(host_links, "frontend_command", lambda *_: WAITS)
    monkeypatch.setattr(host_links, "_is_out_of_sight", lambda name: name != "seen")
    now = [1000.0]
    monkeypatch.setattr(host_links.time, "monotonic", lambda: now[0])
    made = HostLinks()
    made.now = now
    yield made
    made.end()


def _processes(links):
    return dict(links._links)


def test_a_run_that_a_page_shows_and_that_nobody_sees_has_one_connection(links):
    links.keep(["far", "seen"])
    first = _processes(links)
    assert first.keys() == {"far"}
    links.now[0] += 30
    links.keep(["far"])
    assert _processes(links) == first
    first["far"].kill()
    first["far"].wait()
    links.keep(["far"])
    assert _processes(links) == first, "it is tried again later"
    links.now[0] += 31
    links.keep(["far"])
    assert _processes(links)["far"].poll() is None


def test_a_connection_ends_some_time_after_the_last_page(links):
    links.keep(["far"])
    process = _processes(links)["far"]
    links.now[0] += 50
    links.keep([])
    assert process.poll() is None
    links.now[0] += 50
    links.keep([])
    assert process.wait(10) == 0, "its input has ended, and so has it"
    assert not _processes(links)


def test_a_connection_that_cannot_be_started_is_said_and_tried_again_later(
    links, monkeypatch, capfd
):
    monkeypatch.setattr(host_links, "frontend_command", lambda *_: ["/no/such/program"])
    for _ in range(2):
        links.keep(["far"])
    assert capfd.readouterr().err.count("far: cannot connect: [Errno 2]") == 1
    monkeypatch.setattr(host_links, "frontend_command", lambda *_: WAITS)
    links.now[0] += 61
    links.keep(["far"])
    assert _processes(links)["far"].poll() is None


def test_a_connection_ends_with_a_dashboard_that_is_killed(tmp_path):
    program = (
        "import sys, time; from launcher.dashboard import host_links as h;"
        f"h.frontend_command = lambda *_: {WAITS!r}; h._is_out_of_sight = lambda name: True;"
        "links = h.HostLinks(); links.keep(['far']);"
        "print(links._links['far'].pid, flush=True); time.sleep(60)"
    )
    dashboard = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(dashboard.stdout.readline())
    waiter = subprocess.Popen(["tail", f"--pid={pid}", "-f", "/dev/null"])
    dashboard.kill()
    dashboard.wait()
    assert waiter.wait(20) == 0
