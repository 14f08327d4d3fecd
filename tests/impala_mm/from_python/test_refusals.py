"""What is refused from Python before anything starts: typed errors of one sentence."""

import dataclasses
import fcntl
import math
import re
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import impala_mm
from impala_mm import errors
from impala_mm.config import command_line, setting_files
from impala_mm.config.errors import BadSettings
from impala_mm.config.settings import Config
from impala_mm.from_python import start
from launcher.plan.settings import LauncherConfig


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.glob("runs/*")), "what is refused leaves no folder"


REFUSED = [
    ({"batchsize": 3}, "there is no flag --batchsize; did you mean --batch_size?"),
    ({"batch_size": 0}, "--batch_size=0: it must be at least 1"),
    ({"batch_size": np.float32(2.5)}, "flag --batch_size=2.5: needs a whole number"),
    ({"learning_rate": None}, "learning_rate=None: leave it out for its default"),
    ({"mlp_sizes": {64}}, "mlp_sizes={64}: a flag takes a number, a text"),
    ({"job_name": "actor"}, "job_name is no setting of a training: leave it out"),
    ({"mode": "test"}, "mode=test is no training: impala_mm.evaluate tests a policy"),
    ({"help": True}, "help is only for the command line: leave it out"),
    ({"preset": "atari"}, "--preset=atari: it must be atari-impala, "),
    ({"logdir": "/proc/nothing"}, "logdir=/proc/nothing: "),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_wrong_settings_are_refused_as_on_the_command_line(settings, said):
    with pytest.raises(errors.BadSettings) as error:
        impala_mm.train("CartPole-v1", **settings)
    assert str(error.value).startswith(said)


def test_a_file_may_not_choose_another_mode(tmp_path):
    (tmp_path / "other.toml").write_text('mode = "test"\n')
    with pytest.raises(errors.BadSettings, match=r"^mode=test is no training"):
        impala_mm.train("catch", config=tmp_path / "other.toml")


def test_each_variable_of_a_list_is_an_argument_of_its_own():
    repeated = {f.name for f in dataclasses.fields(LauncherConfig) if f.type == tuple[str, ...]}
    assert set(start.REPEATED) == repeated
    settings = {"env": ["A=1,2", "B"], "mlp_sizes": [4, 5]}
    found = setting_files.to_arguments(settings, start.REPEATED)
    assert found == ["--env=A=1,2", "--env=B", "--mlp_sizes=4,5"]


@pytest.mark.parametrize(
    ("given", "passed"),
    [({}, "runs/catch-"), ({"logdir": "a"}, "a"), ({"logdir": "{here}/a"}, "{here}/a")],
)
def test_the_folder_on_other_hosts_is_below_their_own(tmp_path, monkeypatch, given, passed):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    arguments = []
    monkeypatch.setattr(start, "Run", lambda program, words, *rest: arguments.extend(words))
    given = {name: value.format(here=tmp_path) for name, value in given.items()}
    impala_mm.launch("workers.csv", "catch", **given)
    (logdir,) = [each for each in arguments if each.startswith("--logdir=")]
    assert logdir.startswith(f"--logdir={passed.format(here=tmp_path)}")
    (tmp_path / "runs").unlink()


@pytest.mark.parametrize(
    ("name", "text"),
    [("later.json", '{"level_name": "catch", "warp": 1}'), ("later.toml", "warp = 1")],
)
def test_a_file_of_a_newer_version_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(errors.BadSettings, match=f"^{name}: there is no flag --warp"):
        impala_mm.train(config=Path(name))


def test_numbers_of_numpy_paths_and_lists_are_settings():
    settings = {
        "seed": np.int64(3), "learning_rate": np.float64(0.5), "xla": np.bool_(True),
        "mlp_sizes": np.array([4, 5]), "logdir": Path("a"), "env_kwargs": {"size": 8},
    }  # fmt: skip
    config, given = command_line.parse_settings(settings, Config)
    assert [config.seed, config.learning_rate, config.xla] == [3, 0.5, True]
    assert [config.mlp_sizes, config.logdir, config.env_kwargs] == ["4,5", "a", '{"size": 8}']
    assert sorted(given) == sorted(settings)


REFUSED_POLICIES = [
    (("cartpol",), {}, errors.BadCheckpoint, "cartpol does not exist; did you mean cartpole?"),
    ((None,), {}, errors.BadSettings, "logdir=None: name the folder of a run"),
    (("cartpole",), {"sed": 1}, errors.BadSettings, "no flag --sed; did you mean --seed?"),
    (("cartpole",), {"level_name": int}, errors.BadSettings, "it must be a text, the id"),
    (("cartpole",), {"level_name": "CartPol-v1"}, errors.BadEnvironment, "mean CartPole-v1"),
    (("cartpole",), {"level_name": "catch"}, errors.BadCheckpoint, "was made for 2 actions"),
]


@pytest.mark.parametrize(("given", "options", "error", "said"), REFUSED_POLICIES)
def test_a_policy_that_cannot_be_loaded_is_refused(given, options, error, said):
    for call in (impala_mm.load_policy, impala_mm.evaluate):
        with pytest.raises(error, match=re.escape(said)):
            call(*given, **options)


def test_a_test_of_no_games_is_refused():
    for name in ("num_episodes", "num_envs"):
        with pytest.raises(errors.BadSettings, match=f"^{name}=0: it must be a whole number of"):
            impala_mm.evaluate("cartpole", **{name: 0})


@pytest.mark.parametrize("level", [[gymnasium.Env()], 3, "", []])
def test_what_is_no_environment_is_refused(level):
    with pytest.raises(errors.BadEnvironment, match="is no environment to train on: give an id"):
        impala_mm.train(level)


def test_a_vector_of_environments_is_refused_before_there_is_a_folder():
    with pytest.raises(errors.BadEnvironment, match=r"vector of environments.* num_envs"):
        impala_mm.train(gymnasium.make_vec("CartPole-v1", 2))


@pytest.mark.parametrize("wrappers", ["gymnasium.wrappers:TimeLimit", ["TimeLimit"], [None]])
def test_what_is_no_wrapper_is_refused(wrappers):
    with pytest.raises(errors.BadEnvironment, match="it is a list of classes or functions"):
        impala_mm.train("catch", wrappers=wrappers)


def test_what_cannot_reach_the_actors_is_refused():
    lock = threading.Lock()

    def make():
        return lock and gymnasium.Env()

    with pytest.raises(errors.BadEnvironment, match="make cannot be passed to the actors"):
        impala_mm.train(make)
    with pytest.raises(errors.BadEnvironment, match="Env is defined here, and no other host"):
        impala_mm.launch("workers.csv", gymnasium.Env)


def test_the_folder_of_a_run_of_another_process_is_refused_and_stays_as_it_is(tmp_path):
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "lock").open("w+") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        for level in ("catch", gymnasium.Env):
            with pytest.raises(errors.BadSettings, match="process 4711 is writing to it"):
                impala_mm.train(level, logdir="run")
        with pytest.raises(errors.BadSettings, match="process 4711 is writing to it"):
            impala_mm.launch("workers.csv", "catch", logdir="run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


def test_a_limit_may_be_infinite_and_no_other_number():
    infinite = {"max_seconds": math.inf, "total_environment_frames": math.inf}
    config, _ = command_line.parse_settings(infinite, Config)
    assert config.total_environment_frames == config.stop_at_return == math.inf
    for name in ("learning_rate", "reward_scaling", "entropy_cost"):
        with pytest.raises(BadSettings, match=f"{name}=inf: it must be a finite number"):
            command_line.parse_settings({name: math.inf}, Config)
