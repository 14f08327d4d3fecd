"""The rules for resuming from a checkpoint, and their messages."""

import dataclasses
import re

import pytest
import resuming
import saved_run

from impala_mm.algorithms import agent
from impala_mm.config.flags import format_value
from impala_mm.config.settings import Config
from impala_mm.learner import resume
from impala_mm.learner.learner import RunLimits
from impala_mm.learner.train_step import VariablesNotFinite
from impala_mm.records import checkpoint, run_folder
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch
from impala_mm.records.run_checkpoints import Checkpoints

MADE_OF = {
    "--algorithm": "impala",
    "--agent_name": "MLPAgent",
    "--level_name": "catch",
    "--optimizer": "adam",
    "--num_action_repeats": 1,
    "actions": 3,
    "observations": "float32 [50]",
}


def _kept(folder, **settings):
    """Return the description of a run's checkpoint."""
    saved_run.save(folder, **settings)
    return checkpoint.find(str(folder))[1]


def _made_of(**settings):
    """Return what a run with these flags must share with its checkpoint."""
    config = Config.of_algorithm(settings["algorithm"])(**settings)
    return agent.make_agent(config, 0).made_of


def _about(**more):
    return CheckpointInfo(
        1, dataclasses.asdict(Config()), MADE_OF, {}, updates=20, frames=6400.0, **more
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--agent_name": "MLPLSTMAgent"}, "--agent_name is MLPLSTMAgent here and MLPAgent in r"),
        ({"actions": 4}, "actions are 4 here and 3 in runs/x"),
        (
            {"--level_name": "memory", "--optimizer": "rmsprop"},
            "--level_name is memory here and catch, --optimizer is rmsprop here and adam",
        ),
    ],
)
def test_what_contradicts_a_checkpoint_is_refused_by_name(changes, said):
    with pytest.raises(Mismatch) as refused:
        resume.check_resumable(_about(), MADE_OF | changes, "runs/x")
    assert said in str(refused.value)
    fits = not changes.keys() & {"--agent_name", "actions"}
    assert ("(--mode=train_from --checkpoint=runs/x starts it" in str(refused.value)) == fits


def test_a_moved_runs_environment_from_python_is_its_own():
    about = CheckpointInfo(1, {}, MADE_OF | {"--level_name": "/old/Sign.environment"}, {})
    resume.check_resumable(about, MADE_OF | {"--level_name": "/new/Sign.environment"}, "/new")
    with pytest.raises(Mismatch, match=r"--level_name is /new/Other.environment here"):
        resume.check_resumable(about, MADE_OF | {"--level_name": "/new/Other.environment"}, "/new")


def test_a_preset_that_is_not_named_again_is_no_change():
    """Its values are compared; --config with the run's settings leaves its name out."""
    begun = dataclasses.replace(Config(), preset="catch-impala", seed=5)
    about = CheckpointInfo(1, dataclasses.asdict(begun), MADE_OF, {}, updates=2, frames=64.0)
    said = resume.resume_messages(about, dataclasses.replace(begun, preset=""), 1)
    assert said == ["resumed at 64 frames, update 2"]


def test_the_same_goes_on_and_weights_go_into_another_level_but_into_no_other_network():
    resume.check_resumable(_about(), dict(MADE_OF), "runs/x")
    resume.check_weights(_about(), MADE_OF | {"--level_name": "x", "--optimizer": "y"}, "runs/x")
    with pytest.raises(Mismatch, match=r"--checkpoint=runs/x: observations are f "):
        resume.check_weights(_about(), MADE_OF | {"observations": "f"}, "runs/x")


@pytest.mark.parametrize(
    "flag", ["--normalize_observations", "--normalize_rewards", "--subtract_mean_image"]
)
def test_a_run_that_did_not_record_normalisation_normalised_nothing(flag):
    resume.check_resumable(_about(), MADE_OF | {flag: False}, "runs/x")
    for check in (resume.check_resumable, resume.check_weights):
        with pytest.raises(Mismatch, match=f"{flag} is true here and false"):
            check(_about(), MADE_OF | {flag: True}, "runs/x")


def test_the_unit_of_values_stays_and_only_popart_needs_other_weights():
    plain, popart = (MADE_OF | {"--value_normalization": unit} for unit in ("none", "popart"))
    resume.check_weights(_about(), plain, "runs/x")
    for check, made_of in (
        (resume.check_resumable, plain),
        (resume.check_resumable, popart),
        (resume.check_weights, popart),
    ):
        with pytest.raises(Mismatch, match=r"value_normalization is \w+ here and error"):
            check(_about(), made_of, "runs/x")


def test_what_an_earlier_version_recorded_among_all_flags_alone_is_compared():
    about = _about()
    about.settings["value_normalization"] = "popart"
    resume.check_resumable(about, MADE_OF | {"--value_normalization": "popart"}, "runs/x")
    said = "--value_normalization is error here and popart in runs/x"
    with pytest.raises(Mismatch, match=said):
        resume.check_resumable(about, MADE_OF | {"--value_normalization": "error"}, "runs/x")
    with pytest.raises(Mismatch, match=r"--value_normalization is error here and popart there"):
        resume.check_weights(about, MADE_OF | {"--value_normalization": "error"}, "runs/x")


Q_NETWORK = {
    **{"algorithm": "dqn", "level_name": "memory", "value_distribution": "categorical"},
    **{"duelling": True},
}


@pytest.fixture(scope="module")
def of_dqn(tmp_path_factory):
    """Return (the description of a run's checkpoint, what a run with its flags is made of)."""
    return _kept(tmp_path_factory.mktemp("dqn"), **Q_NETWORK), _made_of(**Q_NETWORK)


@pytest.mark.parametrize(
    "changes",
    [
        {"v_min": 0.0},
        {"v_max": 20.0},
        {"num_atoms": 11},
        {"value_distribution": "quantiles", "huber_delta": 1.0},
        {"duelling": False},
        {"duelling_units": 8},
        {"noisy": True},
    ],
)
def test_what_a_q_networks_outputs_mean_stays(of_dqn, changes):
    about, same = of_dqn
    flag, value = next(iter(changes.items()))
    ours = _made_of(**Q_NETWORK | changes)
    # Earlier versions recorded these flags among all others only.
    kept = {name: v for name, v in about.made_of.items() if name != f"--{flag}"}
    earlier = about._replace(made_of=kept)
    said = f"--{flag} is {format_value(value)} here and {format_value(about.settings[flag])}"
    for check, known in (
        (resume.check_resumable, about),
        (resume.check_resumable, earlier),
        (resume.check_weights, about),
    ):
        with pytest.raises(Mismatch, match=re.escape(said)):
            check(known, ours, "runs/x")
        check(known, same, "runs/x")
    older = about._replace(made_of=MADE_OF, settings={})
    resume.check_resumable(older, MADE_OF | {f"--{flag}": value}, "runs/x")


def test_another_rescaling_of_values_is_refused_and_other_flags_of_q_learning_may_change(tmp_path):
    kind = {"algorithm": "r2d2", "level_name": "memory"}
    about = _kept(tmp_path, **kind)
    with pytest.raises(Mismatch, match=r"--value_rescaling is 0.0 here and 0.001 in runs/x"):
        resume.check_resumable(about, _made_of(**kind, value_rescaling=0.0), "runs/x")
    # Without atoms, their range means nothing.
    free = {"v_min": -3.0, "n_steps": 2, "target_share": 0.5, "epsilon_base": 0.3, "burn_in": 4}
    resume.check_resumable(about, _made_of(**kind, **free), "runs/x")


def test_choices_go_on_standing_for_the_same_numbers(tmp_path):
    kind = {"algorithm": "sac", "level_name": "Pendulum-v1", "discrete_sac": True}
    kind |= {"n_actions_per_dim": 5, "discretization": "log"}
    about = _kept(tmp_path, **kind)
    choices = {"--discretization", "--action_ratio"}
    earlier = {name: v for name, v in about.made_of.items() if name not in choices}
    assert len(earlier) == len(about.made_of) - 2
    for known in (about, about._replace(made_of=earlier)):
        resume.check_resumable(known, _made_of(**kind), "runs/x")
        with pytest.raises(Mismatch, match=r"--action_ratio is 10.0 here and 30.0 in runs/x"):
            resume.check_resumable(known, _made_of(**kind, action_ratio=10.0), "runs/x")
        other = _made_of(**kind | {"discretization": "lin"})
        with pytest.raises(Mismatch, match=r"--discretization is lin here and log in runs/x"):
            resume.check_resumable(known, other, "runs/x")


def test_flags_that_changed_are_said_and_those_of_a_process_alone_or_newer_ones_are_not():
    config, about = Config(learning_rate=0.1, num_actors=7, logdir="elsewhere"), _about()
    first, changed = resume.resume_messages(about, config, learners=1)
    assert first == "resumed at 6,400 frames, update 20"
    assert changed.endswith(": --learning_rate=0.1 (was 0.0008)")
    del about.settings["learning_rate"]
    assert resume.resume_messages(about, config, learners=1) == [first]


def test_auto_keeps_to_the_flags_of_the_run_that_is_resumed_or_whose_weights_are_taken(tmp_path):
    run, other, new = (str(tmp_path / name) for name in ("run", "other", "new"))
    assert resume.recorded_flags(Config(), run) is None
    folder = run_folder.RunFolder(Config(logdir=run))
    folder.write_start(Config(logdir=run, entropy_cost=0.3), ["here:8001"], frames=0.0)
    saved_run.save(tmp_path / "other", level_name="catch", entropy_cost=0.2)

    def kept(logdir, **flags):
        recorded = resume.recorded_flags(Config(**flags), logdir)
        return recorded and recorded["entropy_cost"]

    from_other = {"mode": "train_from", "checkpoint": other}
    assert (kept(run), kept(""), kept(new)) == (0.3, None, None)
    assert (kept(new, **from_other), kept("", **from_other), kept(run, **from_other)) == (
        *(0.2, 0.2),
        0.3,  # it has started before
    )
    assert kept(new, mode="train_from", checkpoint=str(tmp_path / "nowhere")) is None


def test_another_number_of_learners_is_said_with_what_becomes_of_the_batch():
    two = resume.resume_messages(_about(), Config(batch_size=8), learners=2)[1]
    assert "2 learners instead of 1" in two
    assert "16 unrolls instead of 8 (--batch_size=4 keeps it)" in two
    same = resume.resume_messages(_about(), Config(batch_size=4), learners=2)[1]
    assert same.endswith("8 unrolls instead of 8")
    odd = resume.resume_messages(_about(), Config(), learners=3)[1]
    assert "24 unrolls instead of 8" in odd
    assert "keeps it" not in odd, "8 cannot be shared by 3"


def test_fewer_learners_leave_own_states_unused_unless_replay_deals_them_out():
    about = _about()._replace(learners=3, own_states=("a", "b", "c"))
    assert "the own states of learners 1 and 2" in resume.resume_messages(about, Config(), 1)[-1]
    replaying = Config(replay="queue:0.5,uniform:0.5", replay_save=True)
    lines = resume.resume_messages(about, replaying, learners=1)
    assert not any("not be used" in line for line in lines)


_OFFLINE = {"offline_updates": 9, "teacher_data": "games", "num_actors": 0}


@pytest.mark.parametrize(
    ("flags", "about", "said"),
    [
        ({"total_environment_frames": 6400}, {}, "total_environment_frames"),
        ({"total_environment_frames": 6401}, {}, ""),
        ({"stop_at_return": 0.5}, {"episode_return": 0.5}, "stop_at_return"),
        ({"stop_at_return": 0.5}, {"episode_return": 0.4}, ""),
        ({"stop_at_return": 0.5}, {}, ""),
        ({"max_seconds": 9}, {"seconds": 9.5}, "max_seconds"),
        ({"max_seconds": 9}, {"seconds": 8.5}, ""),
        (_OFFLINE, {"offline_updates": 9}, "offline_updates"),
        (_OFFLINE, {"offline_updates": 8}, ""),
    ],
)
def test_a_finished_run_names_the_flag_to_raise(flags, about, said):
    limits = RunLimits(Config.of_algorithm("iql")(**flags), None)
    found = resume.why_finished(_about(**about), limits)
    assert f"a higher --{said}" in found if said else not found


def test_weights_that_are_not_finite_are_named_at_the_start_and_so_is_their_checkpoint(
    tmp_path, monkeypatch
):
    algorithm = resuming._algorithm("impala")
    monkeypatch.setattr(resuming, "_algorithm", lambda kind: algorithm)
    weight = algorithm.variables.trained[2]
    weight.assign(weight * float("nan"))
    with pytest.raises(VariablesNotFinite, match="with which the run starts") as caught:
        resuming.train("impala", tmp_path, 1, [])
    assert "network/core/recall/w" in str(caught.value)
    assert algorithm.variables.trained[1].name not in str(caught.value)
    checkpoints = Checkpoints(tmp_path, algorithm.variables, keep=3)
    checkpoints.snapshot()
    checkpoints.save(CheckpointInfo(1, {}, {}, {}, updates=7))
    with pytest.raises(VariablesNotFinite, match=r"remove .*checkpoints/0000000007"):
        resuming.train("impala", tmp_path, 1, [])
