"""The memory and the GPUs of a machine, as its kernel and its container show them."""

import os
import subprocess
import sys
import time

import pytest

from impala_mm.runtime import machine
from impala_mm.runtime.machine import GpuUse, GpuWatch, IdleCores, ProcessUse, Use


def test_the_memory_is_that_of_the_container_if_it_has_less(tmp_path, monkeypatch):
    limit, none = tmp_path / "limit", tmp_path / "none"
    monkeypatch.setattr(machine, "_LIMITS", (str(none), str(limit)))
    of_machine = machine.memory_bytes()
    assert of_machine > 2**28
    limit.write_text("max\n")
    assert machine.memory_bytes() == of_machine
    limit.write_text("100000000\n")
    assert machine.memory_bytes() == 100_000_000


def test_what_just_fits_is_accepted(monkeypatch, capsys):
    monkeypatch.setattr(machine, "memory_bytes", lambda: 1000)
    machine.refuse_too_many_unrolls("--batch_size=10", 10, 100)
    with pytest.raises(SystemExit):
        machine.refuse_too_many_unrolls("--batch_size=11", 11, 100)
    assert "--batch_size=11: " in capsys.readouterr().err


def test_gpus_that_cuda_hides_do_not_count(monkeypatch):
    monkeypatch.setattr(machine.Path, "glob", lambda path, pattern: range(4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.visible_gpus() == 4
    for shown, number in (("", 0), ("-1", 0), ("1,3", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert machine.visible_gpus() == number


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


def test_the_cores_and_memory_of_this_process_and_of_descendants(monkeypatch):
    monkeypatch.setattr(machine, "_SECONDS", 0.0)
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


def test_between_measurements_and_without_a_file_to_open_the_last_one_remains(monkeypatch):
    use = ProcessUse()
    first = use.newest()
    assert first.memory > 0

    def refuses(path, pattern):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as measuring:
        measuring.setattr(use, "_measure", None)
        assert use.newest() == first
    monkeypatch.setattr(machine, "_SECONDS", 0.0)
    monkeypatch.setattr(machine.Path, "glob", refuses)
    assert use.newest() == first


def test_an_actors_message_holds_it_in_whole_numbers():
    assert Use(1.2346, 410.4).in_header() == {"millicores": 1235, "memory": 410}


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Install a script as nvidia-smi; a running one cannot be written, but can be replaced."""
    new = tmp_path / "new"

    def install(script):
        new.write_text(f"#!/bin/sh\n{script}\n")
        new.chmod(0o755)
        new.replace(tmp_path / "nvidia-smi")

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return install


def test_each_gpu_is_described(driver):
    driver("echo '0, NVIDIA H100, 87, 1234, 81559'; echo '1, NVIDIA H100, [N/A], 4, 81559'")
    first, second = machine.measure_gpus()
    assert first == GpuUse("0", "NVIDIA H100", "87", "1234", "81559")
    assert (second.number, second.used) == ("1", "[N/A]")


def test_a_driver_that_fails_shows_no_gpu(driver, monkeypatch):
    monkeypatch.setattr(machine, "_SMI_TIMEOUT", 0.2)
    for script in ("exit 9", "echo 'No devices were found'", "exec sleep 9"):
        driver(script)
        assert machine.measure_gpus() == [], script


def test_a_watch_has_the_newest_measurement(driver, monkeypatch):
    monkeypatch.setattr(machine, "_GPU_SECONDS", 0.01)
    driver("echo '0, A, 1, 2, 3'")
    watch = GpuWatch()
    watch.start()
    for used in ("1", "5"):
        driver(f"echo '0, A, {used}, 2, 3'")
        until = time.monotonic() + 10
        while [gpu.used for gpu in watch.newest] != [used]:
            assert time.monotonic() < until
            time.sleep(0.01)
    monkeypatch.setenv("PATH", "")
    watch.join(10)
    assert not watch.is_alive()
