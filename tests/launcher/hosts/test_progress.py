"""The progress of many hosts, in a terminal and elsewhere."""

import io

from rich.console import Console

from launcher.hosts import progress
from launcher.hosts.progress import HostsProgress


def _console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=60, color_system=None)


def test_without_a_terminal_few_hosts_have_a_line_for_each_update():
    console = _console(False)
    with HostsProgress(["a", "b"], console) as shown:
        shown.update("a", "begins")
        shown.update("a", "begins")
        for i in range(1000):
            shown.update("b", f"{i} MB", is_count=True)
        shown.finish("b", "")
        shown.finish("a", "no disk")
    assert console.file.getvalue().splitlines() == (
        ["a: begins", "b: 0 MB", "b: ready", "a FAILED: no disk"]
    )


def test_without_a_terminal_many_hosts_have_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(progress, "_PRINT_SECONDS", -1.0)
    console = _console(False)
    names = [f"host{i}" for i in range(200)]
    with HostsProgress(names, console) as shown:
        shown.update("host7", "begins")
        shown.finish("host7", "")
        shown.finish("host8", "no disk")
    *others, last = console.file.getvalue().splitlines()
    assert len(others) == 3
    assert "host8 FAILED: no disk" in others
    assert last == "ready: 1, 1 failed, 198 left (0 s); host7: begins"


def test_in_a_terminal_many_hosts_share_one_line():
    console = _console(True)
    names = [f"host{i}" for i in range(200)]
    with HostsProgress(names, console) as shown:
        shown.update("host7", "installs " + "a long story " * 10)
        shown._live.refresh()
        lines = console.file.getvalue().splitlines()
    assert any("ready: 0, 200 left (0 s); host7: installs" in line for line in lines)
    assert not any("host3" in line for line in lines)
    assert all(len(line) < 90 for line in lines), "none is broken in two"
