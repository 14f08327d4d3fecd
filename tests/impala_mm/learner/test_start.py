"""The numbers of threads that a learner uses."""

import os

import pytest

from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.learner import start
from impala_mm.runtime import devices, lifecycle


@pytest.mark.parametrize(
    ("flags", "cores", "learners", "counts", "said"),
    [
        (["--algorithm=impala"], 2, 1, (1, 1), "one CPU core, since observations are small"),
        (["--algorithm=sac"], 2, 1, (1, 2), "two CPU cores, since products of matrices are large"),
        (["--algorithm=sac"], 2, 2, (1, 1), "one CPU core, since observations are small"),
        # Compiled: the second thread of the others answers actors.
        (["--algorithm=sac", "--layer_norm"], 2, 1, (2, 2), "two CPU cores, since products"),
        (["--algorithm=sac", "--layer_norm"], 1, 1, (1, 2), "one CPU core, since"),
        (["--algorithm=sac", "--intra_op_threads=2"], 2, 1, (2, 2), "CPU"),
    ],
)
def test_a_learner_has_as_many_threads_as_make_it_fastest(
    monkeypatch, flags, cores, learners, counts, said
):
    asked = []
    monkeypatch.setattr(lifecycle, "set_thread_counts", lambda *given: asked.append(given))
    monkeypatch.setattr(devices, "find_device", lambda *_: "CPU")
    monkeypatch.setattr(start.tf.config, "get_visible_devices", lambda *_: [])
    monkeypatch.setattr(devices, "start_devices", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(learners))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(learners))
    (config,), _ = command_line.parse(["", "--level_name=Pendulum-v1", *flags], "", Config)
    _, device = start.find_levels_and_device(config)
    assert asked[-1] == counts
    assert device.startswith(said)
