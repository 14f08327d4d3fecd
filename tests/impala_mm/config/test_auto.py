"""The values that `auto` stands for, and how it is given."""

import os
from typing import NamedTuple

import pytest

from impala_mm.config import auto
from impala_mm.config.flags import parse
from impala_mm.config.settings import Config


class Shape(list):
    """A stand-in for tf.TensorShape with what `auto` needs."""

    def num_elements(self):
        product = 1
        for size in self:
            product *= size
        return product


class Observation(NamedTuple):
    """A stand-in for tf.TensorSpec."""

    shape: Shape


PICTURE, NUMBERS = Observation(Shape([84, 84, 1])), Observation(Shape([4]))


def _config(*flags):
    return parse(["program", *flags], "", Config)[0][0]


def test_numbers_may_be_auto_and_are_what_is_given_else():
    config = _config("--num_actors=auto", "--num_envs=auto")
    assert auto.num_actors(config) == len(os.sched_getaffinity(0))
    assert (auto.num_envs(config, PICTURE), auto.num_envs(config, NUMBERS)) == (32, 16)
    given = _config("--num_actors=0", "--num_envs=5")
    assert auto.num_actors(given) == 0
    assert auto.num_envs(given, PICTURE) == auto.num_test_envs(given) == 5


def test_groups_take_turns_where_cores_are_left_and_images_are_read():
    cores = len(os.sched_getaffinity(0))
    few, all_of_them = f"--num_actors={cores - 1}", f"--num_actors={cores}"
    assert auto.group_sizes(_config(few), 33, PICTURE, True, False) == [17, 16]
    assert auto.group_sizes(_config(few), 1, PICTURE, True, False) == [1]
    assert auto.group_sizes(_config(few), 33, PICTURE, False, False) == [
        33
    ]  # how many it is one of?
    assert auto.group_sizes(_config(few), 33, NUMBERS, True, False) == [33]
    assert auto.group_sizes(_config(all_of_them), 33, PICTURE, True, False) == [33]
    three = _config(all_of_them, "--env_groups=3")
    assert auto.group_sizes(three, 8, NUMBERS, False, False) == [3, 3, 2]


def test_groups_do_not_take_turns_where_actors_wait_for_the_next_policy():
    few = f"--num_actors={len(os.sched_getaffinity(0)) - 1}"
    assert auto.group_sizes(_config(few), 33, PICTURE, True, True) == [33]
    with pytest.raises(ValueError, match=r"--env_groups=2: .* wait for the next policy"):
        auto.group_sizes(_config("--env_groups=2"), 33, PICTURE, True, True)


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
    ("flag", "said"),
    [
        ("--num_envs=many", "--num_envs=many: needs a whole number or auto"),
        ("--num_envs=0", "--num_envs=0: it must be at least 1"),
        ("--num_actors=-2", "--num_actors=-2: it must be at least 0"),
        ("--batch_size=auto", "--batch_size=auto: needs a whole number"),
        ("--inference=here", "--inference=here: it must be actor, learner or auto"),
    ],
)
def test_what_is_no_number_is_refused_in_words(flag, said, capsys):
    with pytest.raises(SystemExit):
        _config(flag)
    printed = capsys.readouterr().err
    assert said.split(": ", 1)[1] in printed
    assert said.split("=")[0].lstrip("-") in printed


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


@pytest.mark.parametrize(
    ("asked", "emulator", "chosen"),
    [
        ("auto", "ale-py 0.11", "abs_one"),
        ("auto", "", "none"),
        ("abs_one", "", "abs_one"),
        ("none", "ale-py 0.11", "none"),
    ],
)
def test_rewards_are_clipped_for_atari_only_unless_the_user_says_so(asked, emulator, chosen):
    assert auto.reward_clipping(Config(reward_clipping=asked), emulator) == chosen
