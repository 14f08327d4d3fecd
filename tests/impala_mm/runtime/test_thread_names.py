"""Threads have names that the kernel knows."""

import threading
from pathlib import Path

import pytest

from impala_mm.runtime import lifecycle

pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/comm").exists(), reason="this kernel knows no names of threads"
)


def _names():
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


def _own_name():
    return Path("/proc/thread-self/comm").read_text().strip()


def test_a_thread_started_within_has_the_name_and_its_starter_has_its_own_again(monkeypatch):
    mine, stop = _own_name(), threading.Event()
    with lifecycle.threads_named("of_this_test"):
        thread = threading.Thread(target=stop.wait)
        thread.start()
    try:
        assert "of_this_test" in _names()
        assert _own_name() == mine
    finally:
        stop.set()
        thread.join()
    monkeypatch.setattr(lifecycle, "_NAME", Path("/nowhere/comm"))  # another kernel
    with lifecycle.threads_named("of_no_thread"):
        assert "of_no_thread" not in _names()


def test_a_thread_names_itself_and_no_other():
    mine, seen = _own_name(), []

    def run():
        lifecycle.name_thread("a_name_that_is_too_long")
        seen.append(_own_name())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == ["a_name_that_is_too_long"[:15]]
    assert _own_name() == mine
