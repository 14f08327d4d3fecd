"""What a process and its descendants use."""

import subprocess
import sys
import time

import pytest

from impala_mm.runtime import process_use
from impala_mm.runtime.process_use import ProcessUse, Use


def test_the_cores_and_memory_of_this_process_and_of_descendants(monkeypatch):
    monkeypatch.setattr(process_use, "_SECONDS", 0.0)
    use = ProcessUse()
    use.newest()
    began, cpu = time.monotonic(), time.process_time()
    while time.process_time() < cpu + 0.3:
        pass
    found = use.newest()
    expected = (time.process_time() - cpu) / (time.monotonic() - began)
    assert found.cores == pytest.approx(expected, rel=0.2)
    assert 20 < found.memory < 20_000
    source = "x = bytearray(300 << 20)\nprint(1, flush=True)\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"1\n"
        use.newest()
        cpu = time.process_time()
        time.sleep(0.5)
        both = use.newest()
        assert both.cores * 0.5 > time.process_time() - cpu, "more than this process has used"
        assert both.memory > found.memory + 290
    finally:
        child.kill()
        child.communicate()
    assert use.newest().memory < both.memory - 290


def test_it_is_measured_every_few_seconds_only(monkeypatch):
    use = ProcessUse()
    first = use.newest()
    assert first.memory > 0
    monkeypatch.setattr(use, "_measure", None)
    assert use.newest() == first


def test_without_a_file_to_open_the_last_measurement_remains(monkeypatch):
    monkeypatch.setattr(process_use, "_SECONDS", 0.0)
    use = ProcessUse()
    first = use.newest()

    def refuses(path, pattern):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(process_use.Path, "glob", refuses)
    assert use.newest() == first


def test_an_actors_message_holds_it_in_whole_numbers():
    assert Use(1.2346, 410.4).in_header() == {"millicores": 1235, "memory": 410}
