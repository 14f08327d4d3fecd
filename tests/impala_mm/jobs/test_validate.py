"""--validate prints what the flags would start, or why they cannot, and leaves no files."""

import json
import re
import shutil
import sys

import pytest
import saved_run
from deadlines import within
from processes import ROOT, needs_horovod, run

from impala_mm.algorithms.policy_gradient.settings import PPOSettings as PpoSettings
from impala_mm.config import command_line, user_modules
from impala_mm.config.settings import Config
from impala_mm.jobs import before_start, local_run, validate
from impala_mm.runtime import lifecycle

EXPERIMENT = (sys.executable, str(ROOT / "experiment.py"))
_TURNS = "tests.helpers.pettingzoo_like:TicTacToe"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Run in tmp_path, without setting up TensorFlow in this process."""
    monkeypatch.setattr(lifecycle, "load_tensorflow", lambda *threads: None)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the folder of a run of Catch, which tests copy."""
    folder = tmp_path_factory.mktemp("saved")
    saved_run.save(folder, level_name="catch")
    return folder


@pytest.fixture
def catch(tmp_path, saved):
    shutil.copytree(saved, tmp_path / "runs" / "c")
    (tmp_path / "file").touch()


def _answer(capsys, **settings):
    """Run --validate with these settings; return (exit code, output)."""
    name = settings.get("algorithm", "impala")
    kind = Config if name == "impalla" else Config.of_algorithm(name)
    with pytest.raises(SystemExit) as ended, user_modules.mistakes_refused():
        validate.run(kind(**settings), list(settings))
    out, err = capsys.readouterr()
    return ended.value.code, out + err


def test_a_process_says_what_its_flags_would_start_and_starts_nothing(tmp_path):
    code, printed = run(*EXPERIMENT, "--validate", "--num_learners=2", cwd=tmp_path)
    assert code == 0, printed
    assert re.fullmatch(
        r"valid: CartPole-v1, impala, MLPAgent, [\d,]+ weights, observations float32 \[4\], "
        r"2 actions\n",
        printed,
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"level_name": "Pendulum-v1"}, "float32 [3], actions Box([1], -2 to 2)\n"),
        ({"logdir": "runs/c"}, "3 actions; resumes from the 1,000 frames in runs/c\n"),
        ({"logdir": "runs/c", "max_seconds": 0}, "; the run in runs/c is finished: "),
        ({"mode": "train_from", "checkpoint": "none", "logdir": "runs/c"}, "resumes from the "),
        ({"mode": "train_from", "checkpoint": "runs/c"}, "starts with the weights of runs/c"),
        ({"job_name": "actor", "logdir": "file"}, "3 actions\n"),
        ({"mode": "rehearsal"}, "valid: a rehearsal of 200 updates\n"),
        ({"mode": "test", "logdir": "runs/c"}, "valid: catch, with runs/c/checkpoints/0000000001 "),
        ({"mode": "export", "logdir": "runs/c"}, "valid: catch, with runs/c/checkpoints/00000000"),
        ({"job_name": "evaluator", "logdir": "runs/d"}, "waits for the first checkpoint\n"),
        ({"level_name": _TURNS, "num_actors": 0, "opponents": "no/run"}, "9 actions\n"),
    ],
)
def test_what_can_be_is_said_in_a_line(catch, tmp_path, capsys, settings, said):
    before = sorted(tmp_path.rglob("*"))
    code, printed = _answer(capsys, **{"level_name": "catch"} | settings)
    assert code == 0, printed
    assert printed.startswith("valid: ")
    assert said in printed
    assert printed.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"level_name": "CartPol-v1"}, "did you mean CartPole-v1"),
        ({"agent_name": "ResNetLSTMAgent"}, "--agent_name=ResNetLSTMAgent"),
        ({"algorithm": "impalla"}, "no such algorithm"),
        ({"replay": "queue:0.5,uniform:0.5:9", "batch_size": 10}, "room for 9 unrolls"),
        ({"replay": "uniform:1:90", "replay_min": 91}, "--replay_min=91"),
        ({"replay": "elite:1:90", "algorithm": "tests.helpers.dqn_like"}, "records no features"),
        (
            {"replay": "uniform:1:90", "algorithm": "tests.helpers.replaying"},
            "--algorithm=tests.helpers.replaying has a source of its own",
        ),
        (
            {"replay": "queue:0.5,elite:0.5:90:insertion=elite", "replay_spill": "disk"},
            "insertion=elite and --replay_spill=disk",
        ),
        ({"sticky_actions": 0.1}, "sticky_actions works only with"),
        ({"learner_hosts": "a:1,localhost"}, "'localhost' is not host:port"),
        ({"track": "tensorbord"}, "--track=tensorbord"),
        ({"bind_address": "x"}, "--bind_address=x: 'x' is not host:port"),
        ({"job_name": "actor", "learner_hosts": "a:0"}, "--learner_hosts=a:0: port 0"),
        ({"num_learners": 3, "learner_hosts": "a:1,b:1"}, "--learner_hosts names 2"),
        ({"num_learners": 2, "bind_address": "b:1"}, "--bind_address is for one learner"),
        ({"job_name": "actor", "learner": 1}, "--learner=1: --learner_hosts names 1"),
        ({"profile": "9:3"}, "--profile=9:3: it must be two numbers of updates"),
        (
            {"mode": "train_from", "checkpoint": "cartpole", "reload_replay": True},
            "--reload_replay without --replay_save",
        ),
        ({"mode": "train_from"}, "--mode=train_from and --checkpoint=FOLDER belong together"),
        ({"mode": "train_from", "checkpoint": "none"}, "--checkpoint: none does not exist"),
        (
            {"mode": "train_from", "checkpoint": "runs/c", "level_name": "memory"},
            "--checkpoint=runs/c: actions are",
        ),
        ({"logdir": "file/x"}, "--logdir=file/x: "),
        ({"logdir": "runs/c", "optimizer": "rmsprop"}, "--optimizer is rmsprop here and adam in"),
        ({"mode": "test"}, "--mode=test plays with a run's trained policy: give the run's"),
        ({"mode": "test", "logdir": "runs"}, "runs is not the folder of a run"),
        ({"mode": "export", "logdir": "runs/c", "export_dir": "runs"}, "it holds c, which no"),
        ({"job_name": "evaluator"}, "give its --logdir"),
        ({"num_envs": 16, "env_groups": 17}, "--env_groups=17"),
        ({"batch_size": 10**8}, "--batch_size=100000000: memory for 200,000,000 unrolls of 4,683"),
        ({"queue_capacity": 10**9}, "--batch_size=8 with --queue_capacity=1000000000: memory for"),
        ({"num_envs": 10**8}, "--num_envs=100000000 for 2 actors: memory for 200,000,000 unrolls"),
        ({"debug": True, "num_learners": 2}, "without graphs: leave out --num_learners"),
        ({"level_name": _TURNS, "inference": "learner"}, "past:0.5 play in actors that have the"),
        (
            {"level_name": _TURNS, "opponents": "no/run"},
            "--opponents=no/run: no/run does not exist",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(catch, tmp_path, capsys, settings, said):
    before = sorted(tmp_path.rglob("*"))
    code, printed = _answer(capsys, **{"level_name": "catch"} | settings)
    assert code == 2, printed
    assert said in printed
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_what_auto_stands_for_is_refused_too(tmp_path, capsys):
    """With actions that are numbers, observations and rewards are normalised."""
    code, printed = _answer(capsys, level_name="Pendulum-v1", replay="uniform:1:90")
    assert code == 2
    assert "--normalize_observations and --normalize_rewards would learn nothing" in printed


def test_a_damaged_checkpoint_and_a_folder_that_cannot_be_written_are_refused(
    catch, tmp_path, capsys, monkeypatch
):
    newest = next((tmp_path / "runs" / "c" / "checkpoints").iterdir())
    (newest / "about.json").write_text("{")
    code, printed = _answer(capsys, level_name="catch", logdir="runs/c")
    assert (code, "no checkpoint of runs/c is intact" in printed) == (2, True)
    monkeypatch.setattr(validate.os, "access", lambda path, mode: path != tmp_path / "runs")
    code, printed = _answer(capsys, level_name="catch")
    assert (code, "cannot be written to" in printed) == (2, True)


def test_what_is_slow_is_valid_with_warnings(capsys):
    code, printed = _answer(capsys, level_name="catch", num_learners=800, num_envs=16, env_groups=3)
    assert code == 0
    assert "warning: 800 learners share " in printed
    assert "the groups get 6 or 5 environments" in printed
    assert printed.count("\n") == 3
    assert printed.startswith("valid: ")  # on stdout, the warnings are on stderr


def test_environments_of_all_levels_are_checked(capsys):
    names = "catch,faulty_levels:ResetRaises-v0,faulty_levels:OutOfBounds-v0"
    code, printed = _answer(capsys, level_name=names)
    lines = printed.splitlines()
    assert code == 2
    assert lines[0].startswith("warning: faulty_levels:OutOfBounds-v0: step 1 returned obser")
    assert lines[-1] == "error: faulty_levels:ResetRaises-v0: reset raised KeyError: 'door'"
    level, many = "faulty_levels:ResetRaises-v0", 10**8
    code, printed = _answer(capsys, level_name=level, check_env_secs=0, num_envs=many)
    assert "error: --num_envs=100000000" in printed, "the environment was not checked before"


def test_a_run_with_a_broken_environment_is_refused_before_anything_is_started(tmp_path, capsys):
    config = Config(level_name="faulty_levels:StepRaises-v0")
    with pytest.raises(SystemExit) as ended:
        local_run.prepare(config, ["experiment.py"], [], has_mpirun=False)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "error: faulty_levels:StepRaises-v0: step 4 raised" in said
    assert not list(tmp_path.iterdir())


def test_a_start_does_not_wait_for_a_slow_environment(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(before_start, "_SECONDS_BEFORE_TRAINING", 0.5)
    config = Config(level_name="faulty_levels:Hangs-v0")
    with within(3):
        local_run.prepare(config, ["experiment.py"], [], has_mpirun=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"teacher": "tests.helpers.scripted:catcher"}, 0, "valid: catch"),
        ({"teacher": "cartpole"}, 2, "error: --teacher=cartpole: catch has 3 actions"),
        (
            {"teacher": "tests.helpers.scripted:catcher", "logdir": "runs/c"},
            2,
            "the run in runs/c had no teacher: leave it out, or start another run",
        ),
    ],
)
def test_the_teacher_is_checked(catch, capsys, settings, code, said):
    found, printed = _answer(capsys, level_name="catch", **settings)
    assert (found, said in printed) == (code, True), printed


def test_a_teacher_of_numbers_is_compared_with_what_auto_stands_for(tmp_path, capsys):
    """A new run has recorded nothing yet that says which distribution its policy has."""
    level = {"level_name": "Pendulum-v1"}
    saved_run.save(tmp_path / "old", **level, box_policy="normal", algorithm="ppo")
    code, printed = _answer(capsys, **level, teacher=str(tmp_path / "old"))
    assert (code, "valid: Pendulum-v1" in printed) == (0, True), printed


def test_a_share_of_recorded_games_that_columns_do_not_make_is_refused(capsys):
    flags = {"algorithm": "dqn", "level_name": "catch", "teacher": "tests.helpers.scripted:catcher"}
    code, printed = _answer(capsys, **flags, teacher_data_share=0.01, batch_size=8)
    assert (code, "error: --teacher_data_share=0.01: " in printed) == (2, True), printed


def test_a_policy_of_this_package_gives_the_weights_of_a_run(capsys):
    flags = ["--mode=train_from", "--policy=cartpole", "--algorithm=ppo", "--validate"]
    (config,), given = command_line.parse(["experiment.py", *flags], "", Config)
    with pytest.raises(SystemExit) as ended:
        validate.run(config, given)
    assert (ended.value.code, "shipped_policies/cartpole" in capsys.readouterr().out) == (0, True)


def test_where_the_frontends_settings_come_from_is_said_before_what_is_valid(capsys):
    """It passes its own flags on in --origins, which experiment.py does not have."""
    origins = {"command line": ["workers_csv_path", "seed"], "preset catch-impala": ["level_name"]}
    config = Config(level_name="catch", seed=3, origins=json.dumps(origins))
    with pytest.raises(SystemExit) as end:
        validate.run(config, ["level_name"])
    assert end.value.code == 0
    *sources, valid = capsys.readouterr().out.splitlines()
    assert sources == [
        "from command line: --seed=3",
        "from preset catch-impala: --level_name=catch",
    ]
    assert valid.startswith("valid: catch")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_actors": 2}, "there are 2 actors"),
        ({"num_actors": 1, "num_learners": 2}, "there are 2 learners"),
        ({"num_actors": 1, "inference": "learner"}, "--inference=actor"),
        ({"num_actors": 1, "env_groups": 2}, "--env_groups=2: --deterministic_run makes actors"),
        ({"algorithm": "ppo", "num_actors": 1, "rounds_overlap": True}, "--rounds_overlap"),
    ],
)
def test_a_run_that_shall_be_repeatable_takes_one_learner_and_one_actor(settings, said, capsys):
    code, printed = _answer(capsys, level_name="catch", deterministic_run=True, **settings)
    assert (code, said in printed) == (2, True), printed


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        ("ppo", {"num_learners": 3, "num_actors": 1}, "there is only 1 actor"),
        ("tests.helpers.on_policy", {"num_learners": 3}, "are only 2 actors"),
    ],
)
def test_each_learner_needs_an_actor_of_its_own_in_rounds(algorithm, settings, said, capsys):
    """Actors do not move from learner to learner there, and all would wait for ever."""
    code, printed = _answer(capsys, algorithm=algorithm, level_name="catch", **settings)
    assert (code, said in printed) == (2, True), printed
    assert "use --num_actors=3" in printed


@needs_horovod
def test_a_run_in_rounds_with_too_few_actors_is_refused_before_anything_is_started(
    tmp_path, capsys
):
    config = PpoSettings(algorithm="ppo", level_name="catch", num_learners=4)
    with pytest.raises(SystemExit) as ended:
        local_run.prepare(config, ["experiment.py"], [], has_mpirun=True)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("would wait for ever: use --num_actors=4\n")
    assert not list(tmp_path.iterdir())
