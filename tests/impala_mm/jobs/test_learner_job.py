"""What a learner's process prints about its run, and how it starts."""

import os
from pathlib import Path

import pytest
from processes import ROOT

from impala_mm.config.settings import Config
from impala_mm.jobs import learner
from impala_mm.transport.front import CONNECTIONS


@pytest.mark.parametrize(
    ("current", "logdir", "command"),
    [
        (ROOT, ROOT / "runs/a", "make tensorboard"),
        (ROOT, "other/a", "tensorboard --logdir=other/a"),
        (ROOT / "sandbox", ROOT / "runs/a", f"tensorboard --logdir={ROOT}/runs/a"),
    ],
)
def test_the_command_that_shows_the_curves_works_in_the_users_folder(
    monkeypatch, current, logdir, command
):
    """`make tensorboard` shows the project's own folder runs/, and needs its Makefile."""
    monkeypatch.chdir(current)
    assert learner._tensorboard_hint(Path(logdir)).startswith(f"`{command}` shows the curves at")


@pytest.mark.parametrize(
    ("algorithm", "flags", "learners", "one"),
    [
        ("impala", {}, 1, True),
        ("impala", {"inter_op_threads": 2}, 1, False),
        ("ppo", {}, 1, False),
        ("sac", {"mlp_sizes": "64,64"}, 1, False),
        ("sac", {}, 1, False),
        ("sac", {}, 2, True),
    ],
)
def test_learners_whose_updates_allocate_much_have_an_arena_for_each_thread(
    monkeypatch, algorithm, flags, learners, one
):
    limited, most = [], []
    monkeypatch.setattr(learner.lifecycle, "use_one_malloc_arena", lambda: limited.append(1))
    monkeypatch.setattr(learner.lifecycle, "raise_file_limit", most.append)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(learners))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    config = Config.of_algorithm(algorithm)(algorithm=algorithm, level_name="Pendulum-v1", **flags)
    learner._set_limits(config)
    assert bool(limited) == one
    assert most == [2 * CONNECTIONS], "files: one for each connection, and as many others"
