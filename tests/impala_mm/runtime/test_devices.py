"""The GPU that a process chooses. TensorFlow's answers are simulated: there may be no GPU."""

import os
from types import SimpleNamespace

import pytest
import tensorflow as tf

from impala_mm.runtime import devices


@pytest.fixture
def host(monkeypatch):
    """Return a function that simulates a host with some number of GPUs, and returns the choice."""

    def of(number):
        gpus = [SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(number)]
        taken = {"visible": None, "grow": []}
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
        monkeypatch.setattr(
            tf.config, "set_visible_devices", lambda of, _: taken.update(visible=of)
        )
        growing = tf.config.experimental
        monkeypatch.setattr(growing, "set_memory_growth", lambda *of: taken["grow"].append(of))
        return gpus, taken

    return of


def test_each_learner_of_a_host_takes_a_gpu_of_its_own_and_no_more_memory_than_it_needs(host):
    gpus, taken = host(4)
    for local_rank in range(4):
        found = devices.select_device("device", "auto", local_rank)
        assert found == f"{gpus[local_rank].name} of 4"
        assert taken["visible"] == [gpus[local_rank]]
        assert taken["grow"][-1] == (gpus[local_rank], True)


@pytest.mark.parametrize(("number", "of_rank_3"), [(1, 0), (2, 1)])
def test_more_learners_than_gpus_share_them(host, number, of_rank_3):
    gpus, taken = host(number)
    devices.select_device("device", "gpu", 3)
    assert taken["visible"] == [gpus[of_rank_3]]


@pytest.mark.parametrize(("wish", "number"), [("cpu", 2), ("auto", 0)])
def test_on_the_cpu_gpus_are_hidden(host, wish, number):
    _, taken = host(number)
    assert devices.select_device("device", wish, 0) == f"{len(os.sched_getaffinity(0))} CPU cores"
    assert taken["visible"] == []
    assert taken["grow"] == []


def test_a_gpu_that_is_not_there_is_refused_by_the_flag_that_asked_for_it(host, capsys):
    host(0)
    with pytest.raises(SystemExit):
        devices.select_device("actor_device", "gpu", 0)
    assert "--actor_device=gpu: " in capsys.readouterr().err


def test_what_keeps_xla_from_compiling_is_reported_in_a_line(monkeypatch):
    assert devices.why_not_compiled() == "", "it compiles for a CPU"

    def refuses(function, **options):
        raise tf.errors.InternalError(None, None, "libdevice not found\n  looked here\n  and there")

    monkeypatch.setattr(tf, "function", refuses)
    assert devices.why_not_compiled() == "libdevice not found"


@pytest.mark.parametrize(
    ("flags", "can"),
    [("fma avx512_bf16", True), ("amx_bf16 amx_tile", True), ("avx2 not_avx512_bf16", False)],
)
def test_a_cpu_computes_in_bfloat16_where_its_flags_say_so(host, tmp_path, flags, can):
    host(0)
    cpuinfo = tmp_path / "cpuinfo"
    assert not devices.computes_bfloat16(cpuinfo), "there is no such file on a Mac"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert devices.computes_bfloat16(cpuinfo) == can


@pytest.mark.parametrize(("capability", "can"), [((8, 0), True), ((7, 5), False), (None, False)])
def test_a_gpu_computes_in_bfloat16_from_its_capability_on(host, monkeypatch, capability, can):
    host(1)
    details = {"compute_capability": capability} if capability else {}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert devices.computes_bfloat16() == can
