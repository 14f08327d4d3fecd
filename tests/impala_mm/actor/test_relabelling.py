"""Goals in hindsight: which steps may give theirs to a step, and when an unroll is complete."""

import os
import signal
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from counting import StandingLink
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.actor.actor import UnrollPlayer, run
from impala_mm.actor.learner_link import UnrollBatch, split_by_run
from impala_mm.actor.policy_puller import PolicyVersion
from impala_mm.algorithms.feature import Features
from impala_mm.algorithms.features.hindsight import Hindsight, Relabeller
from impala_mm.algorithms.interface import Role, Setup
from impala_mm.algorithms.make import make_algorithm
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.data.variables import ParameterLayout
from impala_mm.environments.faults import FaultElsewhere
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.types import BadLevel
from impala_mm.runtime.heartbeat import Heartbeat

GOAL = tf.TensorSpec([1], tf.float32)
OBSERVATION = {"observation": GOAL, "achieved_goal": GOAL, "desired_goal": GOAL}


class Judge:
    """Environments whose reward tells the achieved goal and the desired one."""

    def __init__(self, ends):
        self.ends, self.asked = ends, []

    def judge_goals(self, environment, achieved, desired):
        self.asked.append(environment)
        rewards = (1000 * achieved + desired)[:, 0]
        return rewards, (achieved == desired)[:, 0] if self.ends else None


def _spec(length, copies, window):
    hindsight = Hindsight(copies, window, SimpleNamespace(observation=OBSERVATION))
    number, flag = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
    extras = Features([hindsight]).extras_spec(())
    step = Entry(tf.TensorSpec([], tf.int32), number, flag, flag, OBSERVATION, flag, extras)
    return UnrollSpec(length, 1, step, ()), hindsight


def _stream(kinds, length, codec, unroll):
    """Return unrolls whose entry n achieves goal n; `kinds` says what each entry after 0 is.

    ".": a step; "t", "u": one that terminates or truncates; after these comes a reset.
    """
    shown = ["r"]
    for kind in kinds:
        shown.append("r" if shown[-1] in "tu" else kind)
    contents = []
    for begin in range(0, len(shown) - length, length):
        row = np.zeros([1, codec.size], np.uint8)
        entries, _ = codec.arrays(row)
        for t in range(length + 1):
            kind = shown[begin + t]
            entries.observation["achieved_goal"][0, t] = begin + t
            entries.observation["desired_goal"][0, t] = -1
            entries.first[0, t] = kind == "r"
            entries.terminated[0, t], entries.truncated[0, t] = kind == "t", kind == "u"
        contents.append(row.tobytes())
    return shown, contents


def _last_of_episode(shown, t):
    """Return the last entry of the episode of entry t; a large number if it is not over."""
    later = (n for n in range(t, len(shown)) if shown[n] in "tu")
    return next(later, 10**6)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from("......tu"), min_size=8, max_size=60),
    length=st.integers(1, 7),
    copies=st.integers(1, 4),
    window=st.integers(1, 12),
    ends=st.booleans(),
)
def test_goals_are_those_of_the_window_and_are_sent_as_soon_as_they_are_known(
    kinds, length, copies, window, ends
):
    unroll, hindsight = _spec(length, copies, window)
    codec, judge = UnrollCodec(unroll), Judge(ends)
    shown, contents = _stream(kinds, length, codec, unroll)
    relabeller = Relabeller(unroll, hindsight, judge, 1, [0])
    sent = []
    for number, content in enumerate(contents, 1):
        sent += relabeller.add([0], [content])
        known = number * length  # the newest entry
        last = [(n + 1) * length for n in range(number)]
        due = [min(t + window - 1, _last_of_episode(shown[: known + 1], t)) <= known for t in last]
        assert len(sent) == (due.index(False) if False in due else number)
    for number, content in enumerate(sent):
        now, before = (
            codec.arrays(np.frombuffer(x, np.uint8)[None])[0] for x in (content, contents[number])
        )
        for name in ("observation", "reward", "first", "terminated", "truncated"):
            tf.nest.map_structure(
                np.testing.assert_array_equal, getattr(now, name), getattr(before, name)
            )
        others = now.extras[1]
        for t in range(1, length + 1):
            n = number * length + t
            if shown[n] == "r":
                continue
            end = min(n + window - 1, _last_of_episode(shown, n))
            goals = others.goal[0, t, :, 0]
            assert goals.shape == (copies,)
            assert ((goals >= n) & (goals <= end)).all(), (n, end, goals)
            np.testing.assert_array_equal(others.reward[0, t], 1000 * n + goals)
            np.testing.assert_array_equal(others.reward_before[0, t], 1000 * (n - 1) + goals)
            terminated = goals == n if ends else np.full(copies, shown[n] == "t")
            np.testing.assert_array_equal(others.terminated[0, t], terminated)


def test_every_goal_of_the_window_is_equally_likely():
    unroll, hindsight = _spec(1, 4000, 5)
    relabeller = Relabeller(unroll, hindsight, Judge(True), 1, [3])
    _, contents = _stream("." * 8, 1, UnrollCodec(unroll), unroll)
    first = [relabeller.add([0], [content]) for content in contents]
    assert [len(each) for each in first] == [0, 0, 0, 0, 1, 1, 1, 1]
    entries, _ = UnrollCodec(unroll).arrays(np.frombuffer(first[4][0], np.uint8)[None])
    counts = Counter(entries.extras[1].goal[0, 1, :, 0].tolist())
    assert sorted(counts) == [1, 2, 3, 4, 5]
    assert min(counts.values()) > 0.85 * 800


def test_what_waits_of_an_environment_with_a_fault_is_dropped():
    unroll, hindsight = _spec(2, 1, 4)
    judge = Judge(True)
    relabeller = Relabeller(unroll, hindsight, judge, 3, [0])
    _, contents = _stream("." * 20, 2, UnrollCodec(unroll), unroll)
    assert relabeller.add([0, 1, 2], [contents[0]] * 3, 7) == []
    assert relabeller.add([0, 2], [contents[1]] * 2, 8) == []
    assert len(relabeller.add([0, 1, 2], [contents[2]] * 3, 9)) == 2
    assert judge.asked == [0, 2]
    assert relabeller.policies == [7, 7], "those that played what is sent"


BIT_FLIP = "sandbox.bit_flip:BitFlip-v0"


def _student(algorithm, **own):
    own |= {"her_ratio": 3, "her_window": 6, "mlp_sizes": "8", "unroll_length": 4}
    config = Config.of_algorithm(algorithm)(algorithm=algorithm, level_name=BIT_FLIP, **own)
    return make_algorithm(config, level_spec(BIT_FLIP), Setup(Role.ACTOR))


def test_unrolls_that_waited_are_sent_under_the_run_and_version_that_played_them():
    groups = [(make_environments(BIT_FLIP, 4, seed=0), 4)]
    link = StandingLink([(1, version) for version in range(10)] + [(2, 0), (2, 1), (2, 2)])
    layout = ParameterLayout([], [], "float32")
    run(_student("dqn"), groups, layout, link, print, threading.Event(), Heartbeat())
    late = 0
    for number, batches in enumerate(link.sent[:10]):
        (batch,) = batches
        assert batch.run == 1
        assert batch.version in range(number - 2, number + 1)
        late += batch.version < number
    assert late > 5
    foreign, own = link.sent[10]
    assert foreign.run == 1
    assert (own.run, own.version) == (2, 0)
    assert sum(len(batch.contents) for batches in link.sent for batch in batches) >= 4 * 10


def test_a_batch_is_labelled_with_its_oldest_policy_and_another_runs_unrolls_are_sent_apart():
    newest = UnrollBatch(7, 5, [], np.ones([1, 3], np.float32), faults=2)
    policies = [PolicyVersion(7, 4), PolicyVersion(3, 900), PolicyVersion(7, 5)]
    foreign, own = split_by_run(newest, [b"a", b"old", b"b"], policies)
    assert foreign[:3] == (3, 900, [b"old"])
    assert (len(foreign.episodes), foreign.faults) == (0, 0)
    assert own == newest._replace(version=4, contents=[b"a", b"b"])
    assert split_by_run(newest, [], []) == [newest], "it still reports episodes and faults"


class _Fails(Judge):
    """Environments, of which one raises an error."""

    def __init__(self, error):
        super().__init__(True)
        self.error, self.faults = error, []

    def judge_goals(self, environment, achieved, desired):
        if environment == 1 and self.error:
            raise self.error
        return super().judge_goals(environment, achieved, desired)


def test_an_environment_that_cannot_judge_is_a_bad_level_only_before_the_first_success():
    unroll, hindsight = _spec(2, 1, 2)
    judge = _Fails(BadLevel("compute_reward of X returned inf"))
    relabeller = Relabeller(unroll, hindsight, judge, 2, [0])
    _, contents = _stream("." * 20, 2, UnrollCodec(unroll), unroll)
    relabeller.add([1], contents[:1])
    with pytest.raises(BadLevel, match="returned inf"):
        relabeller.add([1], contents[1:2])
    relabeller = Relabeller(unroll, hindsight, judge, 2, [0])
    relabeller.add([0, 1], [contents[0]] * 2)
    assert len(relabeller.add([0, 1], [contents[1]] * 2)) == 1
    assert relabeller.failed == 1
    (fault,) = judge.faults
    assert fault.environment == 1
    assert fault.text.startswith("environment 1, asked for rewards under other goals: ")
    assert "returned inf" in fault.text
    judge.error = None
    assert len(relabeller.add([0, 1], [contents[2]] * 2)) == 1, "what waited was dropped"
    assert relabeller.failed == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_cannot_judge_is_broken_until_another_is_opened(workers):
    environments = make_environments(BIT_FLIP, 2, seed=0, workers=workers)
    environments.reset()
    wrong = np.zeros([1, 3], np.float32)
    goal = environments.reset().observation["desired_goal"][:1]
    with pytest.raises(BadLevel, match="compute_reward of"):
        environments.judge_goals(1, wrong, goal)
    assert environments.step(np.zeros(2, int)).fault.tolist() == [False, True]
    assert environments.step(np.zeros(2, int)).first.tolist() == [False, True]
    assert environments.step(np.zeros(2, int)).fault.tolist() == [False, False]
    if workers:
        os.kill(environments._workers[0].pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(FaultElsewhere, match="the worker process"):
                environments.judge_goals(0, goal, goal)
        assert environments.step(np.zeros(2, int)).fault.all()
        assert environments.step(np.zeros(2, int)).first.all()
        assert environments.judge_goals(0, goal, goal)[0] == 0
    environments.close()


@pytest.mark.parametrize(("algorithm", "workers"), [("dqn", 2), ("sac", 0)])
def test_players_judge_steps_by_their_environments(algorithm, workers):
    own = {"discrete_sac": True} if algorithm == "sac" else {}
    made = _student(algorithm, **own)
    environments = make_environments(BIT_FLIP, 3, seed=0, workers=workers)
    player = UnrollPlayer(made, [(environments, 3)])
    sent, rounds = [], 12
    for _ in range(rounds):
        sent += player.play()
        assert player.whole == 3
    environments.close()
    assert 3 * (rounds - 2) <= len(sent) <= 3 * rounds
    codec = UnrollCodec(made.unroll)
    rewarded = 0
    for content in sent:
        entries, _ = codec.arrays(np.frombuffer(content, np.uint8)[None])
        others = entries.extras[1]
        live = ~entries.first[0, 1:]
        achieved = entries.observation["achieved_goal"][0, 1:, None]
        reached = (achieved == others.goal[0, 1:]).all(-1)
        np.testing.assert_array_equal(others.reward[0, 1:], reached - 1.0)
        np.testing.assert_array_equal(others.terminated[0, 1:], reached)
        rewarded += reached[live].sum()
    assert rewarded > 3 * rounds, "in hindsight, goals are reached"
