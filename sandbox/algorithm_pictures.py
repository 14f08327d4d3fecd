"""Draw the formulas of the pages on algorithms, as the code computes them.

The pictures are vtrace.svg (impala.md), policy_losses.svg (ppo.md and a2c.md), action_weights.svg
(awr.md and vmpo.md), q_learning.svg (dqn.md and r2d2.md) and teacher_cost.svg (teachers.md).

python sandbox/algorithm_pictures.py [FOLDER]
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plot_style
import tensorflow as tf

from impala_mm.algorithms.features.teacher import Distillation, Returns
from impala_mm.algorithms.interface import Context, EnvironmentNumber
from impala_mm.algorithms.parts import vtrace
from impala_mm.algorithms.policy_gradient.algorithm import PolicyGradient
from impala_mm.algorithms.policy_gradient.variants import A2C, PPO, better_half
from impala_mm.algorithms.q_learning import epsilon
from impala_mm.algorithms.q_learning import values as q_values
from impala_mm.config.algorithm_settings import settings_type
from impala_mm.config.settings import Config
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner

_REFERENCE = Path(__file__).resolve().parent / "reference"
_STEPS = 20
_RANDOM = 21.45  # mean return of a random policy on CartPole


def _panels(titles: list[str], x_titles: list[str]) -> tuple[Any, list[Any]]:
    """Return a figure with a panel for each title, and the panels."""
    figure, axes = plot_style.pyplot().subplots(
        1, len(titles), figsize=(4.6 * len(titles), 3), layout="constrained"
    )
    for panel, title, x_title in zip(axes, titles, x_titles, strict=True):
        panel.set_title(title)
        panel.set_xlabel(x_title)
    return figure, list(axes)


def draw_vtrace() -> Any:
    """Draw the weight of a step, and how far a reward reaches back, for policies of some age."""
    figure, (left, right) = _panels(
        ["weight of a step", "share of a later reward in a step's target"],
        ["ratio of the action's probabilities, pi / mu", "steps until the reward"],
    )
    ratios = np.linspace(0, 3, 121)[1:]
    for threshold, label in ((None, "untruncated"), (1.0, "--clip_rho_threshold=1")):
        left.plot(ratios, vtrace.clipped_exp(tf.math.log(ratios), threshold), label=label)
    for ratio in (1.0, 0.9, 0.7):
        for lambda_, line in ((0.9, "-"), (1.0, ":")):
            share = _reach(ratio, lambda_)
            label = f"ratio {ratio:g}, lambda {lambda_:g}"
            colour = plot_style.COLOURS[round(10 * (1 - ratio))]
            right.plot(range(_STEPS), share, line, color=colour, label=label)
    for panel in (left, right):
        panel.set_ylim(bottom=0)
        panel.legend()
    return figure


def _reach(ratio: float, lambda_: float) -> np.ndarray:
    """Return the part of a reward of 1 in the targets of the steps before it, nearest first."""
    rewards = tf.one_hot([_STEPS - 1], _STEPS, axis=0)
    nothing = tf.zeros_like(rewards)
    targets = vtrace.from_importance_weights(
        tf.fill(rewards.shape, np.log(ratio).astype(np.float32)),
        tf.ones_like(rewards),
        rewards,
        nothing,
        nothing[0],
        lambda_=lambda_,
    )
    return targets.vs[::-1, 0].numpy()


def draw_policy_losses() -> Any:
    """Draw how much a step moves the policy, by the ratio of the action's probabilities."""
    figure, panels = _panels(
        [f"factor of the gradient of log p, advantage {sign}1" for sign in "+-"],
        ["ratio of the action's probabilities, new / old"] * 2,
    )
    log_ratios = tf.math.log(tf.constant(np.linspace(0.4, 1.8, 281), tf.float32))
    kinds = {"ppo": PPO, "a2c": A2C, "vpg": PolicyGradient}
    for panel, advantage in zip(panels, (1.0, -1.0), strict=True):
        for line, (name, kind) in zip(("-", "--", ":"), kinds.items(), strict=True):
            factors = _factors(name, kind, log_ratios, advantage)
            panel.plot(tf.exp(log_ratios), factors, line, label=name)
        panel.legend()
    return figure


def draw_action_weights() -> Any:
    """Draw the weights of actions by their advantages, as AWR and V-MPO have them."""
    figure, (left, right) = _panels(
        ["AWR: weight of an action", "V-MPO: weight of an action"], ["scaled advantage"] * 2
    )
    advantages = tf.constant(np.linspace(-3, 4, 141), tf.float32)
    most = settings_type("awr", Config)().largest_weight
    for temperature in (1.0, 2.0, np.inf):
        weights = vtrace.clipped_exp(advantages / temperature, most)
        left.plot(advantages, weights, label=f"--temperature={temperature:g}")
    exchange = GradientReducer(SingleLearner(), Config())
    exchange.begin(tf.zeros([], tf.int64))
    # One step for each of 2,048 equally probable parts of a normal distribution.
    probabilities = tf.constant((np.arange(2048) + 0.5) / 2048, tf.float32)
    drawn = np.sqrt(2) * tf.math.erfinv(2 * probabilities - 1)[:, tf.newaxis]
    for temperature in (0.5, 1.0, 5.0):
        weights, _ = better_half(
            drawn, tf.ones_like(drawn, tf.bool), tf.constant(temperature), exchange
        )
        right.plot(drawn[:, 0], weights[:, 0], label=f"temperature {temperature:g}")
    for panel in (left, right):
        panel.legend()
    return figure


def _factors(name: str, kind: type, log_ratios: tf.Tensor, advantage: float) -> tf.Tensor:
    """Return by how much each action's log-probability is to grow, as the loss has it."""
    algorithm = kind.__new__(kind)  # only its settings are needed
    algorithm._config = settings_type(name, Config)()
    with tf.GradientTape() as tape:
        tape.watch(log_ratios)
        loss = algorithm._policy_terms(log_ratios, tf.fill(log_ratios.shape, advantage)).losses
    return -tape.gradient(loss, log_ratios)


def draw_q_learning() -> Any:
    """Draw the rescaling of values, and the shares of random actions on the ladder."""
    figure, (left, right) = _panels(
        ["what the network learns of a value", "share of random actions, 32 environments"],
        ["value, in rewards", "environment"],
    )
    values = np.linspace(-300, 300, 601)
    for rescaling in (0.001, 0.01):
        label = f"--value_rescaling={rescaling:g}"
        left.plot(values, q_values.rescale(values, rescaling), label=label)
    left.legend()
    numbers = tf.range(32)
    base = settings_type("r2d2", Config)().epsilon_base
    shares = epsilon.of_ladder(EnvironmentNumber(numbers, tf.constant(32)), base)
    right.semilogy(numbers, shares, "o", markersize=4)
    return figure


def draw_teacher_cost() -> Any:
    """Draw how a teacher's cost falls, for the returns of a recorded run as the student's."""
    run = json.loads((_REFERENCE / "cartpole-1.json").read_text())
    frames, _, returns = map(np.array, zip(*run["curve"], strict=True))
    figure, (left, right) = _panels(
        ["the student's mean return (CartPole)", "share of --teacher_cost"],
        ["environment frames"] * 2,
    )
    left.plot(frames, returns)
    left.axhline(500, color="#333333", linestyle="--", linewidth=1, label="the teacher")
    left.axhline(_RANDOM, color="#333333", linestyle=":", linewidth=1, label="a random policy")
    left.legend()
    for method in ("kickstarting", "qdagger", "constant"):
        right.plot(
            frames, list(_costs(method, frames, returns)), label=f"--teacher_method={method}"
        )
    right.set_ylim(-0.03, 1.03)
    right.legend()
    return figure


def _costs(method: str, frames: np.ndarray, returns: np.ndarray) -> Iterator[float]:
    """Yield the share of the cost that remains in each update."""
    config = settings_type("impala", Config)(teacher="cartpole", teacher_method=method)
    distillation = Distillation(config)
    distillation.set_returns(Returns(teacher=500.0, random=_RANDOM))
    distillation.begin([None], 1)
    for now, mean in zip(frames, returns, strict=True):
        numbers = (tf.constant(x, tf.float32) for x in (now, frames[-1], mean))
        found = distillation.begin_update(Context(*numbers))
        yield float(found["teacher_cost"]) / config.full_teacher_cost


PICTURES = {
    "vtrace": draw_vtrace,
    "policy_losses": draw_policy_losses,
    "action_weights": draw_action_weights,
    "q_learning": draw_q_learning,
    "teacher_cost": draw_teacher_cost,
}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, draw in PICTURES.items():
        plot_style.save_figure(draw(), folder / f"{name}.svg")
        print(f"wrote {folder / name}.svg")
