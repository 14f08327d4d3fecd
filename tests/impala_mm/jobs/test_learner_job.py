"""What a learner's process prints about its run, and how it starts."""

from pathlib import Path

import pytest
from processes import ROOT

from impala_mm.config.settings import Config
from impala_mm.jobs import learner
from impala_mm.transport.front import CONNECTIONS


@pytest.mark.parametrize(
    ("current", "logdir", "command"),
    [
        (ROOT, "runs/a", "make tensorboard"),
        (ROOT, ROOT / "runs/a", "make tensorboard"),
        (ROOT, "other/a", "tensorboard --logdir=other/a"),
        (ROOT / "sandbox", "runs/a", "tensorboard --logdir=runs/a"),
        (ROOT / "sandbox", ROOT / "runs/a", f"tensorboard --logdir={ROOT}/runs/a"),
    ],
)
def test_the_command_that_shows_the_curves_works_in_the_users_folder(
    monkeypatch, current, logdir, command
):
    """`make tensorboard` shows the project's own folder runs/, and needs its Makefile."""
    monkeypatch.chdir(current)
    assert learner._tensorboard_hint(Path(logdir)).startswith(f"`{command}` shows the curves at")


def test_a_learner_may_open_a_file_for_each_connection_and_as_many_others(monkeypatch):
    monkeypatch.setattr(learner.lifecycle, "raise_file_limit", _end)
    with pytest.raises(SystemExit) as ended:
        learner.run(Config())
    assert ended.value.code == 2 * CONNECTIONS


@pytest.mark.parametrize(
    ("algorithm", "sizes", "learners", "one"),
    [
        ("impala", "256,256", 1, True),
        ("ppo", "256,256", 1, False),
        ("sac", "64,64", 1, False),
        ("sac", "256,256", 1, False),  # two threads, which would wait for each other
        ("sac", "256,256", 2, True),
    ],
)
def test_learners_whose_updates_allocate_much_have_an_arena_for_each_thread(
    monkeypatch, algorithm, sizes, learners, one
):
    limited = []
    monkeypatch.setattr(learner.lifecycle, "use_one_malloc_arena", lambda: limited.append(1))
    monkeypatch.setattr(learner.lifecycle, "raise_file_limit", lambda _: None)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(learners))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    config = Config.of_algorithm(algorithm)(
        algorithm=algorithm, level_name="Pendulum-v1", mlp_sizes=sizes
    )
    learner._set_limits(config)
    assert bool(limited) == one


def _end(code):
    raise SystemExit(code)
