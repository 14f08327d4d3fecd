"""A student of a trained policy: --algorithm=tests.algorithms.student --teacher=FOLDER.

It is kickstarting (Schmitt et al. 2018): V-trace, and the divergence from a teacher that may have a
memory and another network. The student's actors do not load the teacher: it reads each unroll from
its initial state, and the loss leaves the first entries out.
"""

import sonnet as snt
import tensorflow as tf

import impala_mm
from impala_mm.algorithms.interface import (
    DEFAULT_SETUP,
    Algorithm,
    PolicyOutput,
    Role,
    entry_spec,
    start_spec,
)
from impala_mm.algorithms.parts import (
    action_policies,
    losses,
    masking,
    networks,
    optimizers,
    vtrace,
)
from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables


def make(config, environment, setup=DEFAULT_SETUP):
    return Student(config, environment, setup.role)


class Student(Algorithm):
    masks = True

    def __init__(self, config, environment, role):
        self._config = config
        self.network_name = networks.chosen_name(config, environment)
        self._body = networks.make_network(config, environment)
        self._discrete = environment.actions.discrete is not None
        self._distribution = action_policies.choose(
            environment.actions, config.box_policy, config.box_deviation
        )
        self._policy = action_policies.make_head(self._distribution, config.policy_init_scale)
        self._value = snt.Linear(1, name="value")
        for head in (self._policy, self._value):  # creates their variables
            head(tf.zeros([1, self._body.num_features]))
        start = start_spec(self.initial_state(1))
        parameters = tf.TensorSpec([self._distribution.num_parameters], tf.float32)
        step = entry_spec(environment, extras=parameters)
        self.unroll = UnrollSpec(config.unroll_length, 1 + config.burn_in, step, start)
        modules = (self._body, self._policy, self._value)
        trained = [v for module in modules for v in module.trainable_variables]
        carried = []
        if role is Role.LEARNER:
            if not config.teacher:
                raise UserMistake("--teacher must be the folder of the run of a trained policy")
            # It is refused if it cannot teach, or if its network does not fit this level.
            self._teacher = impala_mm.load_policy(
                config.teacher, level_name=config.level_name, as_teacher=True
            )
            self._optimizer = optimizers.make(
                config.optimizer,
                config.learning_rate,
                config.decay,
                config.momentum,
                config.epsilon,
            )
            self._optimizer.initialize(trained)
            carried = list(self._optimizer.variables)
        self.variables = Variables(trained, carried, acting=trained)

    def initial_state(self, batch):
        return self._body.initial_state(batch)

    def act(self, entry, core_state, exploration):
        parameters, _, core_state = self._read(entry, core_state)
        policy = self._distribution.make(parameters, entry.mask)
        action = tf.nest.map_structure(
            lambda drawn, likely: losses.select(exploration > 0, drawn, likely),
            policy.sample(),
            policy.mode(),
        )
        return action, core_state, parameters

    def judge(self, entry, core_state):
        parameters, value, _ = self._read(entry, core_state)
        policy = parameters
        if self._discrete:
            policy = tf.nn.softmax(masking.allowed_only(parameters, entry.mask))
        return PolicyOutput(policy, value, parameters)

    def _read(self, entry, core_state):
        features, core_state = self._body.step(
            entry.observation, self._clipped(entry.reward), entry.action, entry.first, core_state
        )
        return self._policy(features), tf.squeeze(self._value(features), -1), core_state

    def _clipped(self, reward):
        return losses.clip_reward(reward, self._config.reward_clipping)

    def update(self, batch, context, exchange):
        config, trained, size = self._config, self.variables.trained, tf.shape(batch.weight)[0]
        taught = self._teacher.judge_unroll(batch.unrolls, self._teacher.initial_state(size))
        # A teacher of values, such as DQN, has no parameters: its policy is softmax(values / 0.1).
        parameters = 10.0 * taught.values if taught.parameters is None else taught.parameters
        taught = parameters[config.burn_in : -1]  # [T, B, P]
        cost = optimizers.linear_decay(
            config.teacher_cost, context.frames, tf.constant(config.teacher_frames)
        )
        (total, own, kl), gradients = exchange.differentiate(
            lambda: self._loss(batch, taught, cost), trained
        )
        self._optimizer.learning_rate.assign(
            optimizers.scheduled_rate(config, context.frames, context.total)
        )
        exchange.apply(self._optimizer, gradients, trained)
        metrics = {"loss/total": total, "loss/own": own, "teacher/kl": kl, "teacher/cost": cost}
        return metrics, batch.weight

    def _loss(self, batch, taught, cost):
        """Return (loss, its part without the teacher, the divergence from the teacher)."""
        config, e = self._config, batch.unrolls
        features, _ = self._body.unroll(
            e.observation, self._clipped(e.reward), e.action, e.first, batch.start
        )
        b = config.burn_in
        e = tf.nest.map_structure(lambda x: x[b:], e)
        parameters = snt.BatchApply(self._policy)(features[b:])
        values = tf.squeeze(snt.BatchApply(self._value)(features[b:]), -1)
        behaviour = self._distribution.make(e.extras, masking.before(e.mask))
        steps = losses.transitions(
            values=values,
            actions=e.action,
            rewards=self._clipped(e.reward),
            terminated=e.terminated,
            first=e.first,
            behaviour_log_probs=behaviour.log_prob(e.action),
            weight=batch.weight,
            discounting=config.discounting,
        )
        masks = masking.allow_all(~steps.live, e.mask)
        policy = self._distribution.make(parameters[:-1], masks)
        log_probs = policy.log_prob(steps.actions)
        targets = vtrace.from_importance_weights(
            tf.where(steps.live, log_probs - steps.behaviour_log_probs, 0.0),
            steps.discounts,
            steps.rewards,
            values[:-1],
            values[-1],
        )

        def mean(terms):
            return losses.reduce(terms, steps.live, batch.weight, config.loss_reduction)

        own = mean(-log_probs * targets.pg_advantages)
        own += config.baseline_cost * mean(0.5 * tf.square(targets.vs - values[:-1]))
        own -= config.entropy_cost * mean(policy.entropy())
        kl = mean(self._distribution.make(taught, masks).kl(policy))
        return own + cost * kl, own, kl
