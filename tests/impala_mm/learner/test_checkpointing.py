"""The times at which rank 0 saves checkpoints, and the checkpoints' descriptions."""

import math
import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.data.variables import Variables
from impala_mm.learner import resume
from impala_mm.learner.checkpointing import Checkpointing
from impala_mm.learner.learner import RunLimits
from impala_mm.learner.own_state import Saved
from impala_mm.records import checkpoint, saved_variables
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.records.outputs import EventHook
from impala_mm.records.ratings import OpponentRatings
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.runtime.heartbeat import Heartbeat

MADE_OF = dict.fromkeys(("--algorithm", "--agent_name", "actions", "observations"), "the same")


@pytest.fixture
def keep(tmp_path):
    """Return a function of (config, log) that makes the checkpointing of the run in tmp_path."""

    def make(config, said, variables=None):
        weights = [tf.Variable([0.0, 0.0])]
        variables = variables or Variables(weights, [tf.Variable(0.0)], weights)
        about = CheckpointInfo(2, {"batch_size": 8}, MADE_OF, {})
        learner = SimpleNamespace(
            **{"variables_lock": threading.Lock(), "variables_complete": True},
            **{"offline_updates": 0, "own_state": None, "limits": RunLimits(config, None)},
            algorithm=SimpleNamespace(variables=variables),
        )
        status = SimpleNamespace(
            **{"config": config, "learner": learner, "say": said.append, "heartbeat": Heartbeat()},
            aggregator=SimpleNamespace(ratings=OpponentRatings(())),
        )
        events = EventHook("", tmp_path, said.append)
        checkpoints = Checkpoints(tmp_path, variables, config.keep_checkpoints)
        return Checkpointing(status, checkpoints, about, events), variables

    return make


def _at(keeper, updates, frames, seconds=0.0, mean_return=math.nan):
    """Return checkpointing whose learner has come this far."""
    learner, status = keeper._learner, keeper._status
    learner.updates, learner.steps, learner.frames = updates, updates * 10, float(frames)
    status.seconds, status.mean_return = seconds, mean_return
    return keeper


def test_it_saves_what_was_learnt_since_with_counts_and_the_mean_return(keep, tmp_path):
    said = []
    keeper, _ = keep(Config(total_environment_frames=1000), said)
    assert keeper.restore() is None
    _at(keeper, 0, 0, 1.0).save()
    assert not said, "nothing was learnt yet"
    _at(keeper, 3, 30, 2.5).save()
    about = checkpoint.find(tmp_path)[1]
    assert (about.updates, about.steps, about.frames, about.seconds) == (3, 30, 30.0, 2.5)
    assert (about.episode_return, about.learners, about.made_of) == (None, 2, MADE_OF)
    _at(keeper, 3, 30, 4.0, 0.5).save()
    assert len(said) == 1, "nothing since"
    with keeper._learner.variables_lock:
        assert not _at(keeper, 4, 40).save(), "it does not wait for an update, which may hang"
    assert _at(keeper, 4, 40, 5.0, 0.5).save()
    keeper._learner.variables_complete = False
    assert not _at(keeper, 5, 50, 6.0, 0.7).save(), "it may have made some of its steps"
    keeper.end()
    assert checkpoint.find(tmp_path)[1].episode_return == 0.5, "it is not of this update"
    _at(keeper, 4, 40, 6.0, 0.7).end()
    path, about = checkpoint.find(tmp_path)
    assert (about.updates, about.frames, about.seconds) == (4, 40.0, 6.0)
    checkpoint.verify(path)
    _at(keeper, 4, 40, 7.0).end()
    assert checkpoint.find(tmp_path)[1].episode_return == 0.7, "a new process has seen no games"


def test_what_is_written_has_the_counts_of_the_copied_variables_and_the_return_known_by_then(
    keep, tmp_path
):
    said = []
    keeper, variables = keep(Config(total_environment_frames=1000), said)
    _at(keeper, 3, 130, 2.5)
    keeper._learner.offline_updates = 2
    keeper.take_snapshot([Saved("a"), Saved("", "No space")])
    _at(keeper, 5, 150, 4.0, 0.5)
    keeper._learner.offline_updates = 4
    variables.trained[0].assign([5.0, 5.0])
    keeper.look(0.0, tmp_path)
    path, about = checkpoint.find(tmp_path)
    assert (about.updates, about.steps, about.frames, about.offline_updates) == (3, 30, 130.0, 2)
    assert about.own_states == ("a", "")
    assert about.milestone, "of the first tenth"
    assert (about.seconds, about.episode_return) == (4.0, 0.5)
    saved_variables.load(path, saved_variables.named(variables))
    assert variables.trained[0].numpy().tolist() == [0, 0]
    assert "learner 1 cannot save its own state (No space)" in said[0]


def test_the_first_after_each_tenth_of_the_frames_is_a_milestone_across_a_resume_too(
    keep, tmp_path
):
    config = Config(total_environment_frames=1000, keep_checkpoints=1)
    keeper, _ = keep(config, [])
    for update, frames in enumerate((40, 90, 110, 190, 230), 1):
        _at(keeper, update, frames, 0.0).save()
    keeper, _ = keep(config, [])
    assert keeper.restore().frames == 230
    for update, frames in enumerate((240, 290, 470, 480), 6):
        _at(keeper, update, frames, 0.0).save()
    kept = [checkpoint.verify(path) for path in checkpoint.all_in(tmp_path / "checkpoints")]
    assert [about.frames for about in kept] == [110, 230, 470, 480]


def test_another_runs_weights_begin_a_new_one_without_its_slots_and_counts(keep, tmp_path):
    source, ours = keep(Config(), [])
    ours.trained[0].assign([1.0, 2.0])
    ours.carried[0].assign(3.0)
    _at(source, 7, 70, 1.0).save()
    path = tmp_path.rename(tmp_path.with_name("source"))
    tmp_path.mkdir()
    said = []
    config = Config(mode="train_from", checkpoint=str(path))
    keeper, variables = keep(config, said)
    assert keeper.restore() is None
    assert f"{path}/checkpoints/0000000007 (70 frames)" in said[0]
    assert variables.trained[0].numpy().tolist() == [1, 2]
    assert float(variables.carried[0]) == 0
    _at(keeper, 1, 10, 0.0).save()
    variables.trained[0].assign([5.0, 5.0])
    keeper, _ = keep(config, said)
    assert keeper.restore().updates == 1, "once begun it goes on from its own"
    assert "--checkpoint is not read again" in said[-1]


def _old_run(keep, tmp_path, teacher):
    """Return the folder of a run at update 7, of [weight], and carried [slot, teacher's cost]."""
    variables = _with_schedule(teacher)
    keeper, _ = keep(Config(), [], variables)
    for number, variable in enumerate((*variables.trained, *variables.carried), 1):
        variable.assign(tf.fill(variable.shape, float(number)))
    _at(keeper, 7, 70, 3.0).save()
    path = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-old"))
    tmp_path.mkdir()
    return path


def _with_schedule(teacher):
    weights, slot = [tf.Variable([0.0, 0.0])], tf.Variable(0.0)
    schedules = [tf.Variable(1.0)] if teacher else []
    return Variables(weights, [slot, *schedules], weights, schedules=schedules)


@pytest.mark.parametrize("taught", [(True, True), (True, False), (False, True)])
def test_a_run_from_another_ones_weights_and_optimizer_begins_its_schedules_anew(
    keep, tmp_path, taught
):
    path = _old_run(keep, tmp_path, taught[0])
    config = Config(mode="train_from", checkpoint=str(path), reload_optimizer=True)
    variables = _with_schedule(taught[1])
    keeper, _ = keep(config, [], variables)
    assert keeper.restore() is None
    assert variables.trained[0].numpy().tolist() == [1, 1]
    assert [float(v) for v in variables.carried] == [2.0, 1.0][: 1 + taught[1]]
    assert keeper.started_from[1].updates == 7


@pytest.mark.parametrize(
    ("flags", "changes", "said"),
    [
        ({"reload_optimizer": True}, {"--optimizer": "rmsprop"}, "--reload_optimizer"),
        ({"reload_replay": True}, {}, "--reload_replay"),
    ],
)
def test_what_another_run_lacks_is_refused(keep, tmp_path, flags, changes, said):
    path = _old_run(keep, tmp_path, True)
    config = Config(mode="train_from", checkpoint=str(path), **flags)
    variables = _with_schedule(True)
    with pytest.raises(checkpoint.Mismatch, match=said):
        resume.start_from(config, variables, MADE_OF | changes)
    assert variables.trained[0].numpy().tolist() == [0, 0]


def test_flags_that_have_changed_since_are_named_where_a_variable_is_missing(keep):
    keeper, variables = keep(Config(total_environment_frames=1000), [])
    _at(keeper, 3, 30).save()
    more = variables._replace(carried=[*variables.carried, tf.Variable(1.0)])
    again, _ = keep(Config(total_environment_frames=1000, batch_size=16), [], more)
    with pytest.raises(checkpoint.Mismatch, match=r"lacks it; .*: --batch_size=16 \(was 8\)$"):
        again.restore()
