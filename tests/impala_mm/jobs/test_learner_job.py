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


def _end(code):
    raise SystemExit(code)
