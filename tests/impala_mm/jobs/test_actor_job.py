"""What an actor makes of its flags."""

import sys

import pytest
from processes import ROOT, Process, free_port

from impala_mm.config.settings import Config
from impala_mm.jobs.actor import first_learner


def test_actors_take_learners_in_turn_unless_one_is_named():
    assert [first_learner(Config(task=task), 2) for task in range(4)] == [0, 1, 0, 1]
    assert [first_learner(Config(task=task, learner=1), 2) for task in range(4)] == [1] * 4


@pytest.mark.slow  # the test above chooses the learner
def test_an_actor_that_is_to_stay_with_a_learner_dials_that_alone(tmp_path):
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    actor = Process(
        *(sys.executable, str(ROOT / "experiment.py"), "--job_name=actor", "--level_name=catch"),
        *(f"--learner_hosts={','.join(addresses)}", "--learner=2", "--task=1"),
        *("--learner_assignment=fixed", f"--token_file={tmp_path / 'token'}"),
    )
    actor.until(rf"waiting for the learner at {addresses[2]} \(\d+ s so far\)")
