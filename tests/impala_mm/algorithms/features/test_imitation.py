"""What Q-networks learn from teachers and recorded actions, against NumPy and SciPy in float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from impala_mm.algorithms.feature import Features
from impala_mm.algorithms.feature_settings import DISTILLED
from impala_mm.algorithms.features import recorded_actions, teacher
from impala_mm.algorithms.features.teacher import Taught
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.make import make_algorithm
from impala_mm.algorithms.parts import masking
from impala_mm.algorithms.q_learning import player
from impala_mm.algorithms.q_learning.settings import DQNSettings
from impala_mm.environments.make import level_spec

T, B, A = 5, 3, 4


class Case:
    """Values of a student and of teachers at an unroll, all drawn at random, in float64."""

    def __init__(self, seed, teachers=1, copies=1, masked=False):
        rng = np.random.default_rng(seed)
        self.copies = copies
        self.values = rng.normal(0, 2, (T, copies * B, A))
        self.theirs = rng.normal(0, 2, (teachers, T, B, A))  # values, of which the logits are made
        self.live, self.known = rng.random((2, T, B)) < 0.7
        self.live[0], self.known[0] = True, True
        self.weight = rng.uniform(0.2, 1.0, B)
        self.mask = rng.random((T + 1, B, A)) < 0.6 if masked else np.ones((T + 1, B, A), bool)
        self.mask[..., 0] = True
        allowed = np.where(self.mask, rng.random((T + 1, B, A)), -1)
        self.action = np.concatenate([np.zeros((1, B), int), allowed.argmax(-1)[:-1]])
        self.masked = masked
        self.recorded = np.arange(B) > 0  # its columns

    def measure(self, config, values=None):
        """Return the loss, its metrics, and the gradient of the values."""
        given = tf.Variable(self.values if values is None else values)
        teachers = teacher.make(config, None, Role.LEARNER)
        for made in teachers:
            made.begin([None] * len(self.theirs), 1)
            made._share.assign(0.25)  # the cost has fallen to a quarter
        costs = recorded_actions.make(config, None, Role.LEARNER)
        features = Features([*teachers, *costs])
        theirs = [tf.constant(x) for x in self.theirs]
        taught = Taught(
            tuple(x / config.teacher_temperature for x in theirs),
            tf.constant(self.known),
            tuple(theirs) if "value" in config.distilled else (),
        )
        weight = tf.constant(self.weight)
        actions = tf.constant(np.tile(self.action[1:], [1, self.copies]), tf.int32)
        masks = tf.constant(self.mask) if self.masked else ()
        repeated = tf.nest.map_structure(lambda x: tf.concat([x] * self.copies, 1), taught)
        with tf.GradientTape() as tape:
            live = tf.constant(self.live)
            masks = masking.allow_all(~live, masks)
            student = player.make_student(
                config, given, actions, masks, live, weight, tf.constant(self.recorded), self.copies
            )
            prepared = (repeated,) * len(teachers) + ((),) * len(costs)
            loss, measured = features.loss(student, prepared)
        metrics = {key: x[0] / x[1] for each in measured for key, x in each.items()}
        return float(loss), metrics, tape.gradient(loss, given)

    def steps(self):
        """Yield (t, b, mask) of each step that counts."""
        for t in range(T):
            for b in range(B):
                if self.live[t, b]:
                    yield t, b, self.mask[t, b]

    def of_copies(self, t, b):
        """Return the values [A] of each copy of a column."""
        return [self.values[t, copy * B + b] for copy in range(self.copies)]


def _softmax(x, mask):
    return special.softmax(np.where(mask, x, -np.inf))


def _term(kind, mine, theirs, mask, config):
    """Return what one step adds, by the rules in words."""
    tau = config.teacher_temperature
    eps = config.value_rescaling
    in_rewards = _restored(mine, eps) if eps else mine
    p, q = _softmax(theirs / tau, mask), _softmax(in_rewards / tau, mask)
    best = int(np.argmax(np.where(mask, theirs, -np.inf)))
    if kind == "policy":
        return sum(a * (np.log(a) - np.log(b)) for a, b in zip(p, q, strict=True) if a > 0)
    if kind == "best_action":
        return -np.log(q[best])
    if kind == "value":
        goals = np.sign(theirs) * (np.sqrt(abs(theirs) + 1) - 1) + eps * theirs if eps else theirs
        return np.mean([(a - b) ** 2 for a, b, m in zip(mine, goals, mask, strict=True) if m])
    others = [mine[a] + config.teacher_margin * (a != best) for a in range(A) if mask[a]]
    return max(others) - mine[best]


def _restored(y, eps):
    """Return the inverse of R2D2's rescaling, by its published formula."""
    root = (np.sqrt(1 + 4 * eps * (abs(y) + 1 + eps)) - 1) / (2 * eps)
    return np.sign(y) * (root**2 - 1)


@settings(max_examples=20, deadline=None)
@given(
    distill=st.sampled_from(sorted(DISTILLED)),
    teachers=st.integers(1, 2),
    copies=st.sampled_from([1, 2]),
    masked=st.booleans(),
    rescaling=st.sampled_from([0.0, 0.01]),
    temperature=st.sampled_from([0.1, 1.0]),
    reduction=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_teachers_add_their_loss_with_the_weights_of_replay(
    distill, teachers, copies, masked, rescaling, temperature, reduction, seed
):
    config = DQNSettings(
        teacher="x", distill=distill, teacher_cost=2.0, teacher_temperature=temperature,
        teacher_margin=0.7, value_rescaling=rescaling, loss_reduction=reduction,
    )  # fmt: skip
    case = Case(seed, teachers, copies, masked)
    loss, metrics, gradient = case.measure(config)
    expected, terms = 0.0, []
    for t, b, mask in case.steps():
        if not case.known[t, b]:
            continue
        term = np.mean(
            [
                sum(_term(kind, mine, theirs[t, b], mask, config) for kind in config.distilled)
                for mine in case.of_copies(t, b)
                for theirs in case.theirs
            ]
        )
        terms.append(term)
        expected += case.weight[b] * term
    expected *= 2.0 * 0.25 / (T * B if reduction == "mean" else 1)
    assert loss == pytest.approx(expected, rel=1e-9, abs=1e-9)
    key = "kl_teacher_pi" if distill == "policy" else "loss/teacher"
    assert float(metrics[key]) == pytest.approx(np.mean(terms), rel=1e-9, abs=1e-9)
    dead = ~np.tile(case.live & case.known, [1, copies])
    assert not gradient.numpy()[dead].any()
    forbidden = ~np.tile(case.mask[:-1], [1, copies, 1]) & masked
    assert not gradient.numpy()[forbidden].any()


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(["cql", "margin"]),
    copies=st.sampled_from([1, 2]),
    masked=st.booleans(),
    temperature=st.sampled_from([0.1, 1.0]),
    reduction=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_recorded_actions_add_the_loss_of_cql_and_recorded_games_a_margin(
    kind, copies, masked, temperature, reduction, seed
):
    config = DQNSettings(
        cql_temperature=temperature, teacher_margin=0.7, loss_reduction=reduction,
        **{f"{kind}_cost": 0.5},
        **{"offline_updates": 1, "teacher_data": "x"} if kind == "margin" else {},
    )  # fmt: skip
    case = Case(seed, 1, copies, masked)
    loss, metrics, gradient = case.measure(config)
    expected, terms, slope = 0.0, [], np.zeros_like(case.values)
    for t, b, mask in case.steps():
        if kind == "margin" and not case.recorded[b]:
            continue
        each, factor = [], 0.5 * case.weight[b] / (T * B if reduction == "mean" else 1)
        played = np.eye(A)[case.action[t + 1, b]]
        for copy, mine in enumerate(case.of_copies(t, b)):
            allowed = np.where(mask, mine, -np.inf)
            if kind == "cql":
                each.append(special.logsumexp(allowed / temperature) - mine @ played / temperature)
                of_copy = (special.softmax(allowed / temperature) - played) / temperature
            else:
                others = allowed + 0.7 * (1 - played)
                each.append(others.max() - mine @ played)
                of_copy = np.eye(A)[others.argmax()] - played
            slope[t, copy * B + b] = factor / copies * of_copy
        terms.append(np.mean(each))
        expected += factor * terms[-1]
    assert loss == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert float(metrics[f"loss/{kind}"]) == pytest.approx(np.mean(terms), rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(gradient, slope, atol=1e-9)


def test_the_margin_is_0_where_the_teachers_action_is_better_by_that_much():
    config = DQNSettings(teacher="x", teacher_method="dqfd", teacher_margin=0.8)
    case = Case(3)
    best = case.theirs[0].argmax(-1)
    better = np.eye(A)[best] * 0.81
    loss, metrics, gradient = case.measure(config, better)
    assert loss == 0.0
    assert not gradient.numpy().any()
    loss, metrics, _ = case.measure(config, 0.5 * better)
    assert float(metrics["loss/teacher"]) == pytest.approx(0.8 - 0.405, rel=1e-9)


def test_dead_steps_may_hold_anything():
    margin = {"margin_cost": 1.0, "offline_updates": 1, "teacher_data": "x"}
    for flags in (
        {"cql_cost": 1.0},
        margin,
        *({"teacher": "x", "distill": kind} for kind in DISTILLED),
    ):
        case = Case(1)
        loss, _, _ = case.measure(DQNSettings(**flags))
        broken = np.where(case.live[..., None], case.values, np.nan)
        found, _, gradient = case.measure(DQNSettings(**flags), broken)
        assert found == loss
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("flags", "cost"),
    [
        ({}, 3.0),
        ({"value_distribution": "categorical"}, 1.0),
        ({"teacher_method": "dqfd"}, 1.0),
        ({"distill": "value"}, 1.0),
        ({"teacher_cost": 0.2}, 0.2),
    ],
)
def test_the_cost_is_the_published_one_unless_it_is_given(flags, cost):
    (made,) = teacher.make(DQNSettings(teacher="x", **flags), None, Role.LEARNER)
    assert float(made.cost()) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("flags", "stops"),
    [
        ({"cql_cost": 1.0}, True),
        ({"margin_cost": 1.0}, True),
        ({"margin_cost": 1.0, "teacher_data_share": 0.5}, False),
        ({"teacher": "x"}, False),
        ({"cql_cost": 1.0, "td_cost": 1.0}, False),
        ({"cql_cost": 1.0, "offline_updates": 0, "teacher_data": ""}, False),
    ],
)
def test_a_student_of_recorded_actions_alone_says_that_it_stops_learning(flags, stops):
    given = {"td_cost": 0.0, "offline_updates": 3, "teacher_data": "x"} | flags
    config = DQNSettings(algorithm="dqn", level_name="catch", **given)
    algorithm = make_algorithm(config, level_spec("catch"))
    assert ("after --offline_updates=3 the network only plays" in algorithm.note) == stops
