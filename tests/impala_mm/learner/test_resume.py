"""The rules for resuming from a checkpoint, and their messages."""

import dataclasses

import pytest
import saved_run

from impala_mm.config.settings import Config
from impala_mm.learner import resume
from impala_mm.learner.limits import RunLimits
from impala_mm.records import run_folder
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch

MADE_OF = {
    "--algorithm": "impala",
    "--agent_name": "MLPAgent",
    "--level_name": "catch",
    "--optimizer": "adam",
    "--num_action_repeats": 1,
    "actions": 3,
    "observations": "float32 [50]",
}


def _about(**more):
    return CheckpointInfo(
        1, dataclasses.asdict(Config()), MADE_OF, {}, updates=20, frames=6400.0, **more
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--agent_name": "MLPLSTMAgent"}, "--agent_name is MLPLSTMAgent here and MLPAgent in r"),
        ({"actions": 4}, "actions are 4 here and 3 in runs/x: give the same, or another --logdir"),
        (
            {"--level_name": "memory", "--optimizer": "rmsprop"},
            "--level_name is memory here and catch, --optimizer is rmsprop here and adam in runs/x",
        ),
    ],
)
def test_what_contradicts_a_checkpoint_is_refused_by_name(changes, said):
    with pytest.raises(Mismatch) as refused:
        resume.check_resumable(_about(), MADE_OF | changes, "runs/x")
    assert said in str(refused.value)
    fits = not changes.keys() & {"--agent_name", "actions"}
    assert ("(--mode=train_from --checkpoint=runs/x starts it" in str(refused.value)) == fits


def test_the_same_goes_on_and_weights_go_into_another_level_but_into_no_other_network():
    resume.check_resumable(_about(), dict(MADE_OF), "runs/x")
    resume.check_weights(_about(), MADE_OF | {"--level_name": "x", "--optimizer": "y"}, "runs/x")
    with pytest.raises(Mismatch, match=r"--checkpoint=runs/x: observations are f .* do not fit"):
        resume.check_weights(_about(), MADE_OF | {"observations": "f"}, "runs/x")


def test_a_run_that_did_not_record_normalisation_normalised_nothing():
    resume.check_resumable(_about(), MADE_OF | {"--normalize_rewards": False}, "runs/x")
    normalised = MADE_OF | {"--normalize_observations": True}
    with pytest.raises(Mismatch, match=r"--normalize_observations is true here and false in runs"):
        resume.check_resumable(_about(), normalised, "runs/x")
    with pytest.raises(Mismatch, match=r"--normalize_observations is true here and false there"):
        resume.check_weights(_about(), normalised, "runs/x")


def test_the_unit_of_values_stays_and_only_popart_needs_other_weights():
    plain = MADE_OF | {"--value_normalization": "none"}
    with pytest.raises(
        Mismatch, match=r"value_normalization is none here and error in runs/x.*from"
    ):
        resume.check_resumable(_about(), plain, "runs/x")
    resume.check_weights(_about(), plain, "runs/x")
    popart = MADE_OF | {"--value_normalization": "popart"}
    with pytest.raises(Mismatch, match="popart here and error in runs/x: give the same, or anothe"):
        resume.check_resumable(_about(), popart, "runs/x")
    with pytest.raises(Mismatch, match="--value_normalization is popart here and error there"):
        resume.check_weights(_about(), popart, "runs/x")


def test_flags_that_changed_are_said_and_those_of_a_process_alone_are_not():
    config = Config(learning_rate=0.1, num_actors=7, logdir="elsewhere")
    assert resume.resume_messages(_about(), config, learners=1) == [
        "resumed at 6,400 frames, update 20",
        "changed since: --learning_rate=0.1 (was 0.0008)",
    ]


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


def test_a_flag_that_did_not_exist_then_has_not_changed():
    about = _about()
    del about.settings["learning_rate"]
    assert len(resume.resume_messages(about, Config(learning_rate=0.1), learners=1)) == 1


def test_another_number_of_learners_is_said_with_what_becomes_of_the_batch():
    two = resume.resume_messages(_about(), Config(batch_size=8), learners=2)[1]
    assert "the run continues on 2 learners instead of 1: frames and schedules continue" in two
    assert "16 unrolls instead of 8 (--batch_size=4 keeps it)" in two
    same = resume.resume_messages(_about(), Config(batch_size=4), learners=2)[1]
    assert same.endswith("8 unrolls instead of 8")
    odd = resume.resume_messages(_about(), Config(), learners=3)[1]
    assert "24 unrolls instead of 8" in odd
    assert "keeps it" not in odd, "8 cannot be shared by 3"


@pytest.mark.parametrize(
    ("flags", "about", "said"),
    [
        (
            {"total_environment_frames": 6400},
            {},
            "it has reached its 6,400 frames; a higher --",
        ),
        ({"total_environment_frames": 6401}, {}, ""),
        (
            {"stop_at_return": 0.5},
            {"episode_return": 0.5},
            "it has reached its mean return of 0.5 (0.",
        ),
        ({"stop_at_return": 0.5}, {"episode_return": 0.4}, ""),
        ({"stop_at_return": 0.5}, {}, ""),
        (
            {"max_seconds": 9},
            {"seconds": 9.5},
            "it has reached its 9 seconds; a higher --max_seconds",
        ),
        ({"max_seconds": 9}, {"seconds": 8.5}, ""),
    ],
)
def test_a_finished_run_names_the_flag_to_raise(flags, about, said):
    limits = RunLimits(Config(**flags), None)
    found = resume.why_finished(_about(**about), limits)
    assert found.startswith(said)
    assert bool(found) == bool(said)
