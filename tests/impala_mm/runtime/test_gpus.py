"""GPUs as nvidia-smi describes them."""

import os
import time

import pytest

from impala_mm.runtime import gpus
from impala_mm.runtime.gpus import GpuUse, GpuWatch


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
    first, second = gpus.measure()
    assert first == GpuUse("0", "NVIDIA H100", "87", "1234", "81559")
    assert (second.number, second.used) == ("1", "[N/A]")


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "exec sleep 9", ""])
def test_a_driver_that_fails_shows_no_gpu(driver, monkeypatch, script):
    monkeypatch.setattr(gpus, "_TIMEOUT", 0.2)
    driver(script)
    assert gpus.measure() == []


def test_a_watch_has_the_newest_measurement(driver, monkeypatch):
    monkeypatch.setattr(gpus, "_SECONDS", 0.01)
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
