"""The values that `auto` stands for, and how it is given."""

import dataclasses
import os
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import tensorflow as tf

from impala_mm.config import auto, flags
from impala_mm.config.command_line import parse
from impala_mm.config.errors import BadSettings
from impala_mm.config.settings import Config
from impala_mm.transport.rounds import why_unfit

PICTURE = tf.TensorSpec([84, 84, 1], tf.uint8)
NUMBERS = tf.TensorSpec([4], tf.float32)
MEMORY = tf.TensorSpec([128], tf.uint8)  # of an emulator


def _config(*flags):
    return parse(["program", *flags], "", Config)[0][0]


def _level(observation, agents=1):
    return SimpleNamespace(observation=observation, agents=agents)


def test_numbers_may_be_auto_and_are_what_is_given_else():
    config = _config("--num_actors=auto", "--num_envs=auto")
    assert auto.num_actors(config) == len(os.sched_getaffinity(0))
    assert auto.num_columns(config, _level(PICTURE)) == 32
    assert auto.num_columns(config, _level(NUMBERS)) == 16
    for given, found in (
        (["--batch_size=16"], 8),
        (["--batch_size=14", "--num_actors=1"], 14),
        (["--batch_size=7", "--num_actors=3"], 1),
        (["--batch_size=8", "--num_learners=2"], 8),
    ):
        rounds = _config("--algorithm=ppo", "--num_envs=auto", *given)
        assert auto.num_columns(rounds, _level(NUMBERS)) == found, given
    many = ("--num_actors=auto", "--num_learners=500")
    assert auto.num_actors(_config(*many)) == len(os.sched_getaffinity(0))
    assert auto.num_actors(_config("--algorithm=ppo", *many)) == 500, "one for each learner"
    given = _config("--num_actors=0", "--num_envs=5")
    assert auto.num_actors(given) == 0
    assert auto.num_columns(given, _level(PICTURE)) == auto.num_test_envs(given) == 5


def test_an_environment_of_several_agents_is_as_many_columns():
    three = _level(NUMBERS, agents=3)
    given, chosen = _config("--num_envs=5"), _config("--num_envs=auto")
    assert (auto.num_columns(given, three), auto.num_columns(chosen, three)) == (15, 15)
    rounds = _config("--algorithm=ppo", "--num_envs=auto", "--num_actors=1", "--batch_size=12")
    assert auto.num_columns(rounds, three) == 12
    assert auto.group_sizes(_config("--env_groups=2"), 15, three, False, False) == [9, 6]
    assert why_unfit(12, 2, agents=3) == ""
    assert "use --num_envs=1, 2 or 4, or --batch_size=18" in why_unfit(12, 3, agents=3)
    assert why_unfit(8, 1, agents=3).endswith("use --batch_size=9")


def test_groups_take_turns_where_cores_are_left_and_images_are_read():
    cores = len(os.sched_getaffinity(0))
    few, all_of_them = f"--num_actors={cores - 1}", f"--num_actors={cores}"
    assert auto.group_sizes(_config(few), 33, _level(PICTURE), True, False) == [17, 16]
    assert auto.group_sizes(_config(few), 1, _level(PICTURE), True, False) == [1]
    assert auto.group_sizes(_config(few), 33, _level(PICTURE), False, False) == [33]
    assert auto.group_sizes(_config(few), 33, _level(NUMBERS), True, False) == [33]
    assert auto.group_sizes(_config(all_of_them), 33, _level(PICTURE), True, False) == [33]
    three = _config(all_of_them, "--env_groups=3")
    assert auto.group_sizes(three, 8, _level(NUMBERS), False, False) == [3, 3, 2]


def test_groups_do_not_take_turns_where_actors_wait_for_the_next_policy():
    few = f"--num_actors={len(os.sched_getaffinity(0)) - 1}"
    assert auto.group_sizes(_config(few), 33, _level(PICTURE), True, True) == [33]
    refused = pytest.raises(BadSettings, match=r"--env_groups=2: .* wait for the next policy")
    with flags.refusals_raised(), refused:
        auto.group_sizes(_config("--env_groups=2"), 33, _level(PICTURE), True, True)


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ([], (1, 1, 1)),
        (["--algorithm=ppo"], (1, 2, 1)),
        (["--algorithm=ppo", "--epochs=1", "--minibatches=8"], (1, 1, 1)),
        (["--algorithm=sac", "--mlp_sizes=64,64", "--compile_updates=false"], (1, 1, 1)),
        (["--algorithm=sac", "--mlp_sizes=512"], (1, 2, 1)),
    ],
)
def test_compiled_updates_have_a_second_thread_that_answers_actors(flags, threads):
    assert _config(*flags).update_threads == threads


@pytest.mark.parametrize(
    ("flags", "two", "one"),
    [
        ([], (1, 2, 2), (1, 2, 1)),
        (["--compile_updates=false"], (1, 2, 2), (1, 1, 1)),
        (["--agent_name=MLPLSTMAgent"], (2, 2, 2), (1, 2, 1)),
        (["--layer_norm"], (2, 2, 2), (1, 2, 1)),
        (["--xla"], (2, 2, 2), (1, 2, 1)),
        (["--mlp_sizes=16,512", "--layer_norm"], (1, 2, 1), (1, 2, 1)),
    ],
)
def test_large_products_have_two_cores_where_there_are_two(monkeypatch, flags, two, one):
    """XLA halves them; without it, or where they are all there is, two networks are computed."""
    for cores, threads in (({0, 1}, two), ({0}, one)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        assert _config("--algorithm=sac", *flags).update_threads == threads


def test_one_thread_is_for_small_observations_on_a_cpu_by_an_algorithm_of_ours():
    def one(*flags, observation=NUMBERS, gpu=False, ours=True):
        return auto.needs_one_thread(_config(*flags), observation, gpu, ours)

    assert one()
    assert not one("--xla")
    assert not one("--intra_op_threads=1")
    assert not one("--inter_op_threads=2")
    assert not one(observation=PICTURE)
    assert not one(gpu=True)
    assert not one(ours=False)


@pytest.mark.parametrize(
    "flag",
    [
        *("--num_envs=many", "--num_envs=0", "--num_actors=-2", "--batch_size=auto"),
        *("--inference=here", "--separate_networks=perhaps", "--xla=auto"),
    ],
)
def test_another_value_is_refused_by_the_flags_name(flag, capsys):
    with pytest.raises(SystemExit):
        _config(flag)
    assert flag.split("=")[0].lstrip("-") in capsys.readouterr().err


def test_a_place_is_chosen_by_the_gpu_and_by_what_there_is_to_infer():
    config = _config("--inference=auto")
    assert auto.inference(config, 2_000_000, "/GPU:0", False).value == "learner"
    for weights, device, rounds, why in (
        (2_000_000, "/CPU:0", False, "no GPU"),
        (7_700, "/GPU:0", False, "7,700 weights"),
        (2_000_000, "/GPU:0", True, "wait for the next policy"),
    ):
        chosen = auto.inference(config, weights, device, rounds)
        assert chosen.value == "actor"
        assert why in chosen.why
    told = auto.inference(_config("--inference=learner"), 7_700, "/CPU:0", True)
    assert told == auto.AutoChoice("learner", "")


class Actions(NamedTuple):
    """A stand-in for an ActionSpec."""

    has_box: bool


class Environment(NamedTuple):
    """A stand-in for an EnvironmentSpec."""

    emulator: str = ""
    actions: Actions = Actions(False)
    observation: tf.TensorSpec = NUMBERS


GAME, ROBOT = Environment("ale-py 0.11", observation=PICTURE), Environment(actions=Actions(True))
FOR_BOX = {
    "box_policy": "normal",
    "normalize_observations": True,
    "normalize_rewards": True,
    "separate_networks": True,
    "entropy_cost": 0.0,
    "kl_mu_pi_cost": 1.0,
}
NO_GAME = {"reward_clipping": "none", "subtract_mean_image": False}
# The defaults before `auto` was one.
FOR_CHOICES = {
    "box_policy": "clipped",
    "normalize_observations": False,
    "normalize_rewards": False,
    "separate_networks": False,
    "entropy_cost": 0.005,
    "kl_mu_pi_cost": 0.0,
}


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        (Environment(), FOR_CHOICES | NO_GAME),
        (GAME, FOR_CHOICES | {"reward_clipping": "abs_one", "subtract_mean_image": True}),
        (ROBOT, FOR_BOX | NO_GAME),
        (ROBOT._replace(observation=PICTURE), FOR_BOX | NO_GAME | {"separate_networks": False}),
    ],
)
def test_impalas_defaults_follow_the_environment(environment, chosen):
    found = auto.task_flags(auto.for_task(_config(), environment))
    assert found == chosen


@pytest.mark.parametrize(
    ("flags", "game", "chosen"),
    [
        (["--replay=queue:0.5,uniform:0.5:100"], GAME, True),
        (["--replay=uniform:1:100", "--replay_ratio=1"], GAME, False),
        (["--teacher_data=runs/old/recorded", "--offline_updates=9"], GAME, False),
        (["--algorithm=ppo", "--level_name=PongNoFrameskip-v4"], GAME, True),
        (["--algorithm=dqn"], GAME, False),
        (["--algorithm=dqn", "--subtract_mean_image=auto"], GAME, True),
        ([], GAME._replace(observation=MEMORY), False),
    ],
)
def test_the_mean_image_of_a_game_is_subtracted_where_it_is_known_from_the_start(
    flags, game, chosen
):
    assert auto.for_task(_config(*flags), game).subtract_mean_image is chosen


def test_where_a_teacher_acts_its_policy_does_not_pull_the_students():
    """Of the steps of a guide, mu is the teacher's policy."""
    guided = _config("--teacher=runs/old", "--guide_steps=100", "--teacher_cost=0")
    assert auto.for_task(guided, ROBOT).kl_mu_pi_cost == 0
    asked = _config("--teacher=runs/old", "--guide_steps=100", "--kl_mu_pi_cost=2")
    assert auto.for_task(asked, ROBOT).kl_mu_pi_cost == 2
    assert auto.for_task(_config("--teacher=runs/old"), ROBOT).kl_mu_pi_cost == 1
    recorded = {"kl_mu_pi_cost": 1.0}
    assert auto.for_task(guided, ROBOT, recorded).kl_mu_pi_cost == 1, "a run keeps its own"
    new = dataclasses.replace(guided, mode="train_from")
    assert auto.for_task(new, ROBOT, recorded).kl_mu_pi_cost == 0


def test_flags_that_are_given_stay_and_algorithms_without_auto_keep_their_defaults():
    given = ["--nonormalize_observations", "--entropy_cost=0.02", "--box_policy=tanh"]
    found = auto.task_flags(auto.for_task(_config(*given), ROBOT))
    changed = {"normalize_observations": False, "entropy_cost": 0.02, "box_policy": "tanh"}
    assert found == FOR_BOX | changed | NO_GAME
    assert auto.for_task(_config("--reward_clipping=none"), GAME).reward_clipping == "none"
    ppo = _config("--algorithm=ppo", "--separate_networks=auto", "--level_name=Pendulum-v1")
    found = auto.task_flags(auto.for_task(ppo, Environment()))
    as_before = {name: getattr(ppo, name) for name in FOR_BOX} | {"separate_networks": True}
    assert found == as_before | NO_GAME
    other = auto.for_task(Config(algorithm="my.own", box_policy="auto"), ROBOT)
    assert (other.box_policy, other.normalize_rewards) == ("normal", False)


def test_a_run_keeps_what_it_has_recorded_and_the_former_defaults_of_what_it_has_not():
    recorded = {"box_policy": "clipped", "entropy_cost": 0.01, "reward_clipping": "abs_one"}
    found = auto.task_flags(auto.for_task(_config(), ROBOT, recorded))
    assert found == FOR_CHOICES | NO_GAME | recorded
    given = _config("--entropy_cost=0.03")
    assert auto.for_task(given, ROBOT, recorded).entropy_cost == 0.03
    assert auto.for_task(given, ROBOT, {"seed": 1}).reward_clipping == "none"
    assert not auto.for_task(_config(), GAME, {"seed": 1}).subtract_mean_image
    with_mean = {"subtract_mean_image": True}
    assert auto.for_task(_config(), GAME, with_mean).subtract_mean_image
    assert not auto.for_task(_config(), ROBOT, with_mean).subtract_mean_image


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--separate_networks"], True),
        (["--noseparate_networks"], False),
        (["--separate_networks", "--separate_networks=auto"], auto.AUTO),
    ],
)
def test_a_truth_value_may_be_auto(arguments, expected):
    config = _config(*arguments)
    assert config.separate_networks is expected
    again = _config(*flags.arguments(config, ["separate_networks"]))  # as processes are started
    assert again.separate_networks is expected
