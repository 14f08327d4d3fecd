"""The number of idle cores on this host."""

import os
import time

import pytest

from impala_mm.runtime.idle_cores import IdleCores


def _stat(folder, *lines):
    (folder / "stat").write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "ctxt 5"]))


def test_only_the_cores_that_this_process_may_use_count(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2})
    _stat(tmp_path, "cpu0 0 0 0 0 0 0 0 0", "cpu1 0 0 2 0 0 0 0 0", "cpu2 0 1 2 0 0 3 4 5")
    cores = IdleCores(tmp_path)
    # 60 ticks idle, 15 waiting for a disk, 25 working.
    _stat(tmp_path, "cpu0 9 0 0 0 0 0 0 0", "cpu1 0 0 2 60 15 0 0 0", "cpu2 25 1 2 0 0 3 4 5")
    assert cores.idle() == 1.5
    assert cores.idle() is None, "no time has passed"


def test_without_the_kernels_figures_the_number_is_not_known(tmp_path):
    cores = IdleCores(tmp_path)
    assert cores.idle() is None
    _stat(tmp_path, *(f"cpu{core} 5 5 5 5 5 5 5 5" for core in os.sched_getaffinity(0)))
    assert cores.idle() is None, "it would be all of the time since the host was started"


def test_a_core_that_works_is_not_idle():
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(own)})
    try:
        cores, until = IdleCores(), time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
        assert cores.idle() == pytest.approx(0, abs=0.2)
    finally:
        os.sched_setaffinity(0, own)
