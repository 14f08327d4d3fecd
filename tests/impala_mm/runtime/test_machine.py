"""The memory and the GPUs of a machine, as its kernel and its container show them."""

import pytest

from impala_mm.runtime import machine


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
    assert "error: --batch_size=11: memory for 11 unrolls of 100 bytes" in capsys.readouterr().err


@pytest.mark.parametrize(("shown", "number"), [(None, 4), ("", 0), ("-1", 0), ("1,3", 2)])
def test_gpus_that_cuda_hides_do_not_count(monkeypatch, shown, number):
    class Drivers:
        def __init__(self, path):
            assert path == "/proc/driver/nvidia"

        def glob(self, pattern):
            return range(4)

    monkeypatch.setattr(machine, "Path", Drivers)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert machine.visible_gpus() == number
