"""Flags that have no effect beside the others are refused, or named before the start."""

import dataclasses
import json
import sys

import pytest
from processes import run

from impala_mm.config import command_line, flag_values
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.flags import Condition, flag, infos, with_flag, with_number, without_flag
from impala_mm.config.settings import Config
from launcher.plan.settings import LauncherConfig


def _check(*arguments, **options):
    (config,), _ = command_line.parse(["experiment.py", *arguments], "", Config)
    flag_values.check_effects(config, **options)


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ("--updates=1", ("--mode=rehearsal",)),
        ("--deterministic=true", ("--mode=test", "--mode=record", "--job_name=evaluator")),
    ],
)
def test_flags_of_a_mode_are_refused_in_the_others(given, places, capsys):
    with pytest.raises(SystemExit) as ended:
        _check(given)
    assert ended.value.code == 2
    assert f"{given} has no effect with --mode=train" in capsys.readouterr().err
    for place in places:
        _check(given, place)
    if "--job_name=evaluator" in places:
        _check(given, evaluators=True)
        _check(given, "--job_name=learner")


def test_an_evaluator_does_not_render(capsys):
    with pytest.raises(SystemExit):
        _check("--job_name=evaluator", "--render")
    assert "--render=true has no effect with --job_name=evaluator" in capsys.readouterr().err


def test_a_file_of_settings_may_have_flags_of_another_mode(tmp_path):
    (tmp_path / "my.toml").write_text("episodes = 5")
    _check(f"--config={tmp_path / 'my.toml'}")


_CHECK = """
import sys
from unittest.mock import MagicMock
sys.modules["impala_mm.jobs"] = jobs = MagicMock()  # they load TensorFlow
jobs.validate.run.side_effect = SystemExit
import experiment
experiment.main(sys.argv)
"""


@pytest.mark.parametrize(
    ("environment", "code"), [({}, 2), ({"IMPALA_MM_START": "check"}, 0)], ids=["user", "frontend"]
)
def test_the_check_of_a_frontend_accepts_the_flags_of_its_evaluators(environment, code):
    given = ("--validate", "--test_num_episodes=3", "--deterministic")
    found, printed = run(sys.executable, "-c", _CHECK, *given, **environment)
    assert found == code, printed


def _note(config, capsys):
    flag_values.check_effects(config)
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        (
            "ppo",
            {"n_steps": 128},
            "(with --advantages=gae; another trainer's --n_steps is --unroll_length here)",
        ),
        ("dqn", {"baseline_cost": 0.3}, "--baseline_cost=0.3 (with --algorithm=dqn)"),
        ("impala", {"cloned": "all"}, "(without --policy_cloning_cost and without --value_cloning"),
        ("impala", {"target_kl_pi_mu": 0.0, "multiplier_speed": 0.1}, ""),
        ("a2c", {"value_clip": 1.0}, "--value_clip=1.0 (with --epochs=1 and --minibatches=1)"),
    ],
)
def test_flags_without_effect_are_named_with_the_reason(algorithm, settings, said, capsys):
    config = Config.of_algorithm(algorithm)(algorithm=algorithm, **settings)
    noted = _note(config, capsys)
    assert noted.startswith("note: without effect: ") if said else not noted
    assert said in noted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--replay_save"], "--replay_save=true has no effect without --replay"),
        (["--teacher_data=x"], "no effect without --offline_updates and without --teacher_data_sh"),
        (
            ["--algorithm=sac", "--discrete_sac", "--target_entropy=-3"],
            "--target_entropy=-3.0 has no effect with --discrete_sac=true",
        ),
        (["--algorithm=vmpo", "--reference=runs/x"], "--reference=runs/x has no effect without --"),
        (["--policy_cloning_cost=0.1"], "no effect without --replay and with --cloned=replay"),
        (["--trust_region=0.3", "--advantages=gae"], "has no effect with --advantages=gae"),
        (["--trust_teacher"], "has no effect without --teacher and with --opponents=self:0.5,past"),
    ],
)
def test_flags_that_need_others_are_refused(given, said, capsys):
    with pytest.raises(SystemExit) as ended:
        _check(*given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_an_opponent_may_be_trusted_without_a_teacher():
    _check("--trust_teacher", "--opponents=past:0.5,exports/other:0.5")


_NO_TEACHER = "(without --teacher)"


def _note_of_teacher(capsys, algorithm="impala", **settings):
    return _note(Config.of_algorithm(algorithm)(algorithm=algorithm, **settings), capsys)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"teacher_cost": 0, "teacher_frames": 9.0},
            "--teacher_frames=9.0 (with --teacher_cost=0 and without --guide_steps and without "
            "--guide_share)",
        ),
        ({"teacher_cost": 0, "teacher_frames": 9.0, "guide_steps": 5}, ""),
        (
            {"teacher_steps": 9, "offline_updates": 1, "teacher_data": "x"},
            "--teacher_steps=9 (with --teacher_data=x)",
        ),
        ({"teacher_steps": 9, "offline_updates": 1}, ""),
        ({"teacher_episodes": 5, "teacher_method": "qdagger", "random_return": 0.0}, ""),
    ],
)
def test_flags_beside_a_teacher_that_does_not_need_them_are_named(settings, said, capsys):
    noted = _note_of_teacher(capsys, teacher="x", **settings)
    assert noted == (said and f"note: without effect: {said}")


def test_what_is_learned_without_a_teacher_reads_its_flags(capsys):
    assert not _note_of_teacher(capsys, teacher_cost=2.0, offline_updates=5, teacher_data="x")
    of_values = {"algorithm": "dqn", "teacher_data": "x", "offline_updates": 5}
    assert not _note_of_teacher(capsys, margin_cost=1.0, teacher_margin=0.8, **of_values)
    assert _NO_TEACHER in _note_of_teacher(capsys, teacher_cost=2.0, **of_values)


def test_what_a_mode_sets_is_not_named(capsys):
    settings = {"teacher": "x", "teacher_cost": 0, "teacher_method": "qdagger"}
    settings |= {"mode": "reincarnate"}
    assert "--teacher_method=qdagger" in _note_of_teacher(capsys, **settings)
    origins = json.dumps({"mode reincarnate": ["teacher_method"]})
    assert not _note_of_teacher(capsys, **settings, origins=origins)


def test_conditions_name_flags_that_exist():
    for kind in (Config, LauncherConfig, *map(Config.of_algorithm, BUILT_IN)):
        known = infos(kind)
        conditions = [c for i in known.values() for c in (i.needs, i.only_with) if c]
        for condition in conditions:
            condition.why_idle(kind())
        assert getattr(kind, "ignored", frozenset()) <= known.keys()


@dataclasses.dataclass(frozen=True)
class _Flags:
    name: str = flag("", "A text.", group="G")
    number: float = flag(float("inf"), "A number.", group="G")


def test_conditions_are_joined():
    named, numbered = with_flag("name"), with_number("number")

    def why(condition: Condition, **settings):
        return condition.why_idle(_Flags(**settings))

    assert why(named) == why(named & numbered) == "without --name"
    assert why(named & numbered, name="x") == "with --number=inf"
    assert why(named | numbered) == "without --name and with --number=inf"
    assert why(named | numbered, number=0.0) == why(named & numbered, name="x", number=0.0) == ""
    assert why(without_flag("name"), name="x") == "with --name=x"
    assert why(with_flag("name", "a", "b"), name="c") == "with --name=c"
    assert (named & with_flag("name", "a", "b")).words == "--name and --name=a or b"


def test_help_says_with_which_flags_another_has_an_effect(capsys):
    with pytest.raises(SystemExit):
        command_line.parse(["experiment.py", "--help=her_window"], "", Config)
    assert "Only with --her_ratio." in " ".join(capsys.readouterr().out.split())
