"""AWR, behaviour cloning and V-MPO against float64 computations in NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize, special

from impala_mm.algorithms.policy_gradient.variants import better_half
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.distributed import minibatches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from tests.helpers import in_threads
from tests.impala_mm.algorithms.policy_gradient import test_policy_gradient as family
from tests.impala_mm.algorithms.policy_gradient.test_policy_gradient import (
    ACTIONS,
    PROGRESS,
    B,
    T,
    Table,
)

ALONE = GradientReducer(SingleLearner(), Config())
CASES = {
    "awr": {},
    "awr, cold and capped": {"temperature": 0.4, "largest_weight": 3.0},
    "awr, positive alone": {"positive_advantages": True},
    "awr, plain advantages": {"advantage_scaling": "none"},
    "cloning": {"temperature": math.inf},
    "cloning of positive": {"temperature": math.inf, "positive_advantages": True},
    "vmpo": {},
    "vmpo, cold": {"temperature": 0.3},
}


def _shares(advantages, temperature):
    """Return the weights of the larger half, which add up to 1, and 0 for the others."""
    half = np.argsort(-advantages)[: len(advantages) // 2]
    shares = np.zeros(len(advantages))
    shares[half] = special.softmax(advantages[half] / temperature)
    return shares


def _weights(name, advantages, live, settings):
    """Return the weights of the steps [T, B] by the definition of the algorithm."""
    temperature, of_live = settings.get("temperature", 1.0), advantages[live]
    if settings.get("advantage_scaling") != "none":
        of_live = (of_live - of_live.mean()) / (of_live.std() + 1e-6)
    if name == "vmpo":
        found = _shares(of_live, temperature) * live.size
    else:
        found = np.minimum(np.exp(of_live / temperature), settings.get("largest_weight", 20.0))
        if settings.get("positive_advantages"):
            found[of_live <= 0] = 0
    weights = np.zeros(live.shape)
    weights[live] = found
    return weights


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_the_definition(case):
    settings = CASES[case]
    name = "vmpo" if case.startswith("vmpo") else "awr"
    algorithm, exchange = family._made(
        name, epochs=1, entropy_cost=0.02, baseline_cost=0.7, gradients_clipping=-1.0, **settings
    )
    batch = family._batch(algorithm)
    table = Table(algorithm, batch)
    log_probs, values = table.outputs()
    chosen, live = batch.unrolls.action[1:, :, None], family._live(batch)
    picked = np.take_along_axis(log_probs, chosen, 2)[..., 0]
    played = np.where(np.arange(ACTIONS) == chosen, np.log(0.3), np.log(0.7))
    batch.unrolls.extras[1:] = played
    advantages = family._advantages(batch, values)
    weights = _weights(name, advantages, live, settings)
    entropies = -(np.exp(log_probs) * log_probs).sum(-1)
    factors = np.where(live, batch.weight, 0) / (T * B)
    found = {}
    exchange.apply = lambda optimizer, gradients, variables: found.update(gradients=gradients)
    algorithm.variables = algorithm.variables._replace(trained=[table.logits, table.values])
    metrics, _ = algorithm.update(family._tensors(batch), PROGRESS, exchange)

    terms = -weights * (picked - np.log(0.3))
    np.testing.assert_allclose(metrics["loss/policy"], (factors * terms).sum(), rtol=2e-4)
    cost = np.exp(0) if name == "vmpo" else 0.0  # the multiplier of KL(mu || pi) before its step
    kl = (np.exp(played) * (played - log_probs)).sum(-1)
    total = terms + 0.7 * advantages**2 / 2 - 0.02 * entropies + cost * kl
    np.testing.assert_allclose(metrics["loss/total"], (factors * total).sum(), rtol=2e-4)

    probs, one_hot = np.exp(log_probs), np.arange(ACTIONS) == chosen
    slopes = -weights[..., None] * (one_hot - probs)
    slopes += 0.02 * probs * (log_probs + entropies[..., None])
    slopes += cost * (probs - np.exp(played))
    dense = [tf.convert_to_tensor(g).numpy() for g in found["gradients"]]
    ours = dense[0].reshape(T + 1, B, ACTIONS)
    np.testing.assert_allclose(ours[:-1], factors[..., None] * slopes, rtol=1e-3, atol=2e-5)
    if name == "awr":
        cap = settings.get("largest_weight", 20.0)
        capped = (weights >= cap)[live].mean()
        np.testing.assert_allclose(metrics["capped_weights"], capped, rtol=1e-5)
        assert "capped" not in case or 0 < capped < 1
    else:
        temperature = settings.get("temperature", 1.0)
        assert float(metrics["temperature"]) == pytest.approx(temperature, rel=1e-5)
        np.testing.assert_allclose(metrics["kl_mu_pi"], kl[live].mean(), rtol=1e-4)


def test_the_better_half_is_that_of_all_learners():
    rng = np.random.default_rng(0)
    advantages, live = rng.normal(size=(5, 6)), rng.random((5, 6)) < 0.8
    advantages[:, :3] += 1.0  # the first learner's are larger
    advantages[~live] = np.nan
    shares = _shares(advantages[live], 0.7)
    expected = np.zeros((5, 6))
    expected[live] = shares * 30
    divergence = np.sum(special.rel_entr(shares, (shares > 0) / (shares > 0).sum()))

    def act(group):
        mine = np.array_split(np.arange(6), group.size)[group.rank]
        exchange = GradientReducer(group, Config())
        exchange.begin(0)
        return better_half(
            tf.constant(advantages[:, mine]),
            tf.constant(live[:, mine]),
            tf.constant(0.7, tf.float64),
            exchange,
        )

    for learners in (1, 2, 3):
        parts = in_threads.together(learners, act)
        weights = np.concatenate([part[0] for part in parts], 1)
        np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose([part[1] for part in parts], divergence, rtol=1e-9)


def test_without_any_step_no_action_has_a_weight():
    weights, divergence = better_half(
        tf.fill([2, 3], np.nan), tf.zeros([2, 3], tf.bool), tf.constant(1.0), ALONE
    )
    assert not weights.numpy().any()
    assert not np.isfinite(divergence)


@pytest.mark.slow
def test_the_temperature_ends_where_the_weights_have_the_target_divergence():
    algorithm, exchange = family._made(
        "vmpo", temperature=0.05, target_weight_kl=0.2, learning_rate=0.0, temperature_speed=0.05
    )
    batch = family._batch(algorithm)
    Table(algorithm, batch)
    tensors = family._tensors(batch)
    for _ in range(300):
        goals, _ = algorithm._goals(tensors, exchange, new=True)
    found = float(algorithm._temperature.cost())
    _, values = family.Table(algorithm, batch).outputs()
    live = family._live(batch)
    advantages = family._advantages(batch, values)[live]
    scaled = (advantages - advantages.mean()) / advantages.std()

    def excess(temperature):
        shares = _shares(scaled, temperature)
        shares = shares[shares > 0]
        return np.sum(shares * np.log(shares * len(shares))) - 0.2

    assert found == pytest.approx(optimize.brentq(excess, 0.05, 50), rel=0.01)
    assert goals.advantages.numpy().mean() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("passes", [{}, {"epochs": 3, "recompute_advantages": True}])
def test_the_temperature_moves_once_in_an_update_however_many_passes_it_makes(passes):
    algorithm, exchange = family._made(
        "vmpo", temperature=1e-3, temperature_speed=0.07, **{"epochs": 1} | passes
    )
    batch = family._batch(algorithm)
    made = []
    algorithm._goals = lambda *args, **given: made.append(kept(*args, **given)) or made[-1]
    kept = type(algorithm)._goals.__get__(algorithm)
    for number in (1, 2):
        metrics, _ = algorithm.update(family._tensors(batch), PROGRESS, exchange)
        found = math.log(algorithm._temperature.cost(tf.float64))
        assert found == pytest.approx(math.log(1e-3) + number * 0.07), "the largest change, once"
        assert math.log(metrics["temperature"]) == pytest.approx(found - 0.07, rel=1e-5)
    assert len(made) == 2 if not passes else len(made) > 2, "the advantages were recomputed"


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("awr", True),
        ("vmpo", False),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("awr", False), ("vmpo", True))),
    ],
)
@pytest.mark.parametrize("learners", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(monkeypatch, name, again, learners):
    """The multipliers are, too: temperatures and costs enter every later step."""
    settings = {
        "epochs": 2, "minibatches": 2, "minibatch_of": "steps", "recompute_advantages": again,
        "learning_rate": 0.01, "gradients_clipping": -1.0, "multiplier_speed": 0.1,
        "target_entropy": 0.6, "target_kl_pi_mu": 0.02,
    }  # fmt: skip

    def learn(group):
        return _learn(name, group, in_threads.share_of(group, 8), **settings)

    several = in_threads.together(learners, learn)
    joined = family._joined(minibatches.shuffled_parts, learners, True)
    monkeypatch.setattr(minibatches, "shuffled_parts", joined)
    ((one, costs),) = in_threads.together(1, learn)
    assert len(costs) == (4 if name == "vmpo" else 2)
    assert min(abs(cost) for cost in costs[-2:]) > 0.01, "they moved"
    for variables, theirs in several:
        for a, b in zip([*variables, *theirs], [*one, *costs], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def _learn(name, group, columns, **settings):
    """Return a learner's trained variables and multipliers after two updates, in float64."""
    made, real = [], family._made

    def kept(*args, **given):
        made.append(real(name, *args, **given))
        return made[-1]

    variables, _ = family._learn(group, columns, True, make=kept, **settings)
    algorithm, _ = made[0]
    multipliers = [*algorithm._entropy_cost.variables]
    multipliers += [v for feature in algorithm.features for v in feature.carried]
    if name == "vmpo":
        multipliers = [*algorithm._temperature.variables, *multipliers]
    return variables, [v.numpy() for v in multipliers]


def test_behaviour_cloning_is_an_infinite_temperature():
    given = ["--algorithm=awr", "--temperature=inf", "--positive_advantages"]
    (config,), _ = command_line.parse(["experiment.py", *given], "", Config)
    assert config.temperature == math.inf


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--algorithm=awr", "--temperature=0"], "--temperature=0.0: it must be at least 0.001"),
        (["--algorithm=awr", "--largest_weight=0.5"], "it must be at least 1"),
        (
            ["--algorithm=vmpo", "--target_weight_kl=inf"],
            "--target_weight_kl=inf: it must be a finite number",
        ),
        (
            ["--algorithm=vmpo", "--target_weight_kl=7"],
            "half of one learner's batch of 2,048 steps are at most 6.93 nats from equal ones",
        ),
        (["--algorithm=vmpo", "--target_weight_kl=-1"], "it must be at least 0"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["experiment.py", *given], "", Config)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
