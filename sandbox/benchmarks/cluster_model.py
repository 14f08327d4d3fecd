"""The speed of a cluster, from what a step costs on each kind of its hosts.

A run waits for its slowest part, so its rate is the least of some limits. Rates are steps/s of one
worker set, a learner and the actors that feed it. Learners step together, so all sets have the rate
of the slowest. `plan.py` measures the costs and reads the hosts from a CSV. No heavy module is
imported.
"""

import bisect
import math
from collections.abc import Callable
from typing import NamedTuple

_BYTES_PER_GBIT = 125e6  # bytes/s
_ACTION_BYTES = 8  # bytes per step to an actor whose learner chooses the actions
_UPDATE_JITTER = 0.1  # largest relative deviation of a learner's update times
_MANY = 1000  # times as many actors as there are: enough for any learner
_ENOUGH = 0.99  # share of the rate of very many actors with which fewer are enough


class HostCosts(NamedTuple):
    """The costs of a step on a kind of host, in a run of one environment, network and shape."""

    cores: float
    acting_seconds: float  # elapsed seconds of an actor that waits neither for cores nor a learner
    acting_cores: float  # core-seconds of an actor's process
    learning_seconds: float  # elapsed seconds of a learner that does not wait for unrolls
    learning_cores: float  # core-seconds of a learner's processes


class RunShape(NamedTuple):
    """The sizes that the flags of a run determine, and the bytes on the wire."""

    steps_per_update: float  # new steps: not those of a replay
    steps_per_turn: float  # of an actor, between two messages to its learner
    step_bytes: float  # to the learner
    parameter_bytes: float  # to an actor's host per pull; 0 if learners choose the actions
    gradient_bytes: float  # of an update of one learner
    min_pull_secs: float  # between two pulls of one host


class Host(NamedTuple):
    """One machine."""

    costs: HostCosts
    gbit: float = math.inf  # Gbit/s of its link in each direction


class WorkerSet(NamedTuple):
    """A worker set: a learner and the actors that feed it."""

    learner: str  # the learner's host
    actors: dict[str, float]  # number of actors by host


class ClusterPlan(NamedTuple):
    """The hosts of a run, and which processes run on each."""

    hosts: dict[str, Host]
    sets: list[WorkerSet]
    shape: RunShape


class RateLimits(NamedTuple):
    """The limits of a worker set's rate; inf if there is no such limit."""

    supply: float  # steps/s of its actors if no learner took cores from them
    learner: float  # steps/s of its learner if no actor took cores from it
    network: float = math.inf  # steps/s that the links of its hosts carry
    cores: float = math.inf  # steps/s of its actors if learners take cores from them

    @property
    def rate(self) -> float:
        """The rate that the set reaches without the others."""
        return min(self)

    @property
    def bottleneck(self) -> str:
        """The name of the smallest limit; the first of equal ones."""
        return min(self._fields, key=lambda field: getattr(self, field))


class Prediction(NamedTuple):
    """The rates that a plan would reach."""

    limits: list[RateLimits]  # by worker set
    actors_needed: list[int]  # by set: number of actors that its learner needs
    slowest_set: int  # number of the set for which the others wait
    total_rate: float  # rate of all sets together


def predict(plan: ClusterPlan) -> Prediction:
    """Predict the rates of a plan in which every set has actors."""
    limits = [_limits_of_set(plan, worker_set) for worker_set in plan.sets]
    slowest = min(range(len(limits)), key=lambda number: limits[number].rate)
    needed = [_actors_needed(plan, number) for number in range(len(limits))]
    return Prediction(limits, needed, slowest, limits[slowest].rate * len(plan.sets))


def straggler_efficiency(learners: int) -> float:
    """Return the share of its rate that each learner keeps if all wait for the slowest.

    Update times are distributed evenly within +-`_UPDATE_JITTER`: the largest of N such times is
    1 + jitter (N - 1) / (N + 1) on average.
    """
    return 1 / (1 + _UPDATE_JITTER * (learners - 1) / (learners + 1))


def _lacking_share(costs: HostCosts, actors: float, learners: int) -> float:
    """Return the share of their cores that actors lack while the learners of their host train.

    Actors have a lower priority: during an update they have the cores that it leaves.
    """
    wanted = actors * costs.acting_cores / costs.acting_seconds
    taken = learners * costs.learning_cores / costs.learning_seconds
    return min(max(1 - (costs.cores - taken) / wanted, 0.0), 1.0) if learners else 0.0


def _limits_of_set(plan: ClusterPlan, worker_set: WorkerSet) -> RateLimits:
    """Return the limits of one worker set if the others keep up with it."""
    costs, learners = _costs_and_learners(plan, worker_set.learner)
    seconds = max(costs.learning_seconds, costs.learning_cores * learners / costs.cores)
    supply = _supply(plan, worker_set, 0.0)
    cores = _largest_rate(lambda rate: _supply(plan, worker_set, rate) >= rate, supply)
    hosts = {worker_set.learner, *worker_set.actors}
    return RateLimits(
        supply=supply,
        learner=straggler_efficiency(len(plan.sets)) / seconds,
        network=_largest_rate(lambda rate: _links_carry(plan, rate, hosts), math.inf),
        cores=cores if cores < supply else math.inf,
    )


def _supply(plan: ClusterPlan, worker_set: WorkerSet, rate: float) -> float:
    """Return the steps/s of a set's actors while each learner trains on `rate` steps/s.

    The actors of a host share evenly the cores that learners leave.
    """
    supply = 0.0
    for host_name, count in worker_set.actors.items():
        costs, learners = _costs_and_learners(plan, host_name)
        actors = sum(each.actors.get(host_name, 0) for each in plan.sets)
        training_share = min(rate * costs.learning_seconds, 1.0)
        own_speed = 1 - _lacking_share(costs, actors, learners) * training_share
        left = max(costs.cores - learners * rate * costs.learning_cores, 0.0)
        supply += count * min(
            own_speed / costs.acting_seconds, left / (actors * costs.acting_cores)
        )
    return supply


def _costs_and_learners(plan: ClusterPlan, host_name: str) -> tuple[HostCosts, int]:
    """Return the costs of a host, and the number of learners on it."""
    return plan.hosts[host_name].costs, [each.learner for each in plan.sets].count(host_name)


def _links_carry(plan: ClusterPlan, rate: float, host_names: set[str]) -> bool:
    """Return whether the links of these hosts carry this rate of every set."""
    shape, hosts = plan.shape, plan.hosts
    up, down = dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0)  # bytes/s sent and received
    learner_hosts = {each.learner for each in plan.sets}
    updates = rate / shape.steps_per_update
    for worker_set in plan.sets:
        for host_name, count in worker_set.actors.items():
            if host_name == worker_set.learner:
                continue
            steps = rate * count / sum(worker_set.actors.values())
            # A pull serves all actors of a host. It needs a new policy, and an actor that has sent
            # its unrolls.
            pulls = min(updates, steps / shape.steps_per_turn)
            if shape.min_pull_secs:
                pulls = min(pulls, 1 / shape.min_pull_secs)
            answers = pulls * shape.parameter_bytes or steps * _ACTION_BYTES
            up[host_name] += steps * shape.step_bytes
            down[worker_set.learner] += steps * shape.step_bytes
            up[worker_set.learner] += answers
            down[host_name] += answers
    for host_name in learner_hosts:  # a ring of all hosts that take part in the all-reduce
        gradients = updates * shape.gradient_bytes * 2 * (1 - 1 / len(learner_hosts))
        up[host_name] += gradients
        down[host_name] += gradients
    return all(max(up[n], down[n]) <= hosts[n].gbit * _BYTES_PER_GBIT for n in host_names)


def _actors_needed(plan: ClusterPlan, number: int) -> int:
    """Count the actors that a set's learner needs; beside no learner they have cores of their own.

    They are spread over the hosts of the set's present actors.
    """
    learner_hosts = {each.learner for each in plan.sets}
    hosts = {
        name: host
        if name in learner_hosts
        else host._replace(costs=host.costs._replace(cores=math.inf))
        for name, host in plan.hosts.items()
    }
    worker_set = plan.sets[number]
    now = sum(worker_set.actors.values())

    def rate_with(actors: float) -> float:
        spread = {name: count * actors / now for name, count in worker_set.actors.items()}
        changed = worker_set._replace(actors=spread)
        sets = [*plan.sets[:number], changed, *plan.sets[number + 1 :]]
        return _limits_of_set(ClusterPlan(hosts, sets, plan.shape), changed).rate

    counts = range(1, math.ceil(_MANY * now))
    enough = _ENOUGH * rate_with(_MANY * now)
    return counts[bisect.bisect_left(counts, enough, hi=len(counts) - 1, key=rate_with)]


def _largest_rate(is_possible: Callable[[float], bool], upper_bound: float) -> float:
    """Find the largest possible rate by bisection; all rates below a possible one are possible."""
    if is_possible(min(upper_bound, 1e9)):
        return upper_bound
    low, high = 0.0, min(upper_bound, 1e9)
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    return low
