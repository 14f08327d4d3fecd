"""The throughput that a run can reach, from what actors supply and learners, cores and links allow.

A run waits for its slowest part, so its rate is the smallest of its limits (`sandbox/planning.md`
compares this with measured runs). `sandbox/benchmarks/plan.py` calls `predict` for a CSV of hosts;
`infer_limits` derives the limits from a live run. `cost_model.py` computes what a rate takes from
hosts. Rates are steps/s of one worker set. No heavy module is imported.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cost_model import (
    ClusterPlan,
    CostFactors,
    WorkerSet,
    actor_speed_fractions,
    actor_step_cost,
    actor_supply,
    cores_left_for_actors,
    count_learners_on,
    learner_step_cost,
    links_carry,
)

_UPDATE_JITTER = 0.1  # largest relative deviation of a learner's update times
_TOLERANCE = 1 - 1e-9  # allows for rounding in comparisons of rates


class RateLimits(NamedTuple):
    """The limits of a worker set's rate; inf if there is no such limit.

    If a learner and actors share a host, each step counts with its cost under contention.
    """

    supply: float  # steps/s of its actors if they had all cores of their hosts
    learner: float  # steps/s of its learner if learners had all cores of their hosts
    network: float = math.inf  # steps/s that the links of its hosts carry
    cores: float = math.inf  # steps/s of all together if actors share hosts with learners

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
    rate: float  # rate of every set: they train in lockstep with the slowest
    slowest_set: int  # number of the set for which the others wait
    total_rate: float  # rate of all sets together


def infer_limits(rate: float, learner_wait_share: float, actor_wait_share: float) -> RateLimits:
    """Infer a run's limits from its rate and the shares of time for which its processes wait.

    A process that never waits works at its limit; one that waits half of the time could do twice as
    much.
    """
    return RateLimits(
        supply=rate / (1 - min(actor_wait_share, 0.99)),
        learner=rate / (1 - min(learner_wait_share, 0.99)),
    )


def count_actors_needed(limit: float, rate_per_actor: float) -> int:
    """Count the actors that reach a limit."""
    return math.ceil(limit / rate_per_actor * _TOLERANCE)


def predict(plan: ClusterPlan) -> Prediction:
    """Predict the rates of a plan in which every set has actors."""
    limits = [_set_limits(plan, number) for number in range(len(plan.sets))]
    slowest = min(range(len(limits)), key=lambda number: limits[number].rate)
    needed = [_count_actors_for_set(plan, number) for number in range(len(limits))]
    rate = _lockstep_rate(plan)
    return Prediction(limits, needed, rate, slowest, rate * len(plan.sets))


def straggler_efficiency(learners: int, jitter: float = _UPDATE_JITTER) -> float:
    """Return the share of its rate that each learner keeps if all wait for the slowest.

    Update times are distributed evenly within +-`jitter`: the largest of N such times is
    1 + jitter (N - 1) / (N + 1) on average.
    """
    return 1 / (1 + jitter * (learners - 1) / (learners + 1))


def fit_cost_factors(
    plans: Sequence[ClusterPlan], rates: Sequence[float], prior_weight: float = 1e-8
) -> CostFactors:
    """Find the factors under which these plans come nearest to their measured total rates.

    `prior_weight` is the weight of the measured costs, that is, of factors of 1. With 1 they weigh
    as much as a rate; the default only decides between factors that fit equally well.
    """

    def error(factors: CostFactors) -> float:
        predicted = [
            _lockstep_rate(plan._replace(factors=factors)) * len(plan.sets) for plan in plans
        ]
        squared_errors = [math.log(f / r) ** 2 for f, r in zip(predicted, rates, strict=True)]
        return sum(squared_errors) + prior_weight * (
            math.log(factors.actor) ** 2 + math.log(factors.learner) ** 2
        )

    # Many starting points, because a limit that is not the bottleneck has no gradient.
    multipliers = [2 ** (power / 5) for power in range(-10, 11)]
    starts = sorted((CostFactors(a, b) for a in multipliers for b in multipliers), key=error)[:4]
    return min((_descend(start, error) for start in starts), key=error)


def _descend(best: CostFactors, error: Callable[[CostFactors], float]) -> CostFactors:
    """Descend from a starting point to a local minimum of the error."""
    step = 2**0.1
    while step > 1.0002:
        multipliers = (1 / step, 1.0, step)
        candidates = [
            CostFactors(best.actor * a, best.learner * b) for a in multipliers for b in multipliers
        ]
        best, before = min(candidates, key=error), best
        step = step if best != before else math.sqrt(step)
    return best


def _set_limits(plan: ClusterPlan, number: int) -> RateLimits:
    """Return the limits of one worker set if the others keep up with it."""
    worker_set = plan.sets[number]
    all_cores = {host_name: host.costs.cores for host_name, host in plan.hosts.items()}
    supply = _largest_rate(
        lambda rate: actor_supply(plan, all_cores, rate, {})[number] >= rate * _TOLERANCE
    )
    cores = _largest_rate(lambda rate: _cores_suffice(plan, rate, number), supply)
    return RateLimits(
        supply=supply,
        learner=_learner_limit(plan, worker_set),
        network=_largest_rate(lambda rate: links_carry(plan, rate, worker_set)),
        cores=cores if cores < supply else math.inf,
    )


def _learner_limit(plan: ClusterPlan, worker_set: WorkerSet) -> float:
    """Return the limit of a set's learner if only other learners share its host."""
    cores_per_learner = plan.hosts[worker_set.learner].costs.cores / count_learners_on(
        plan, worker_set.learner
    )

    def is_possible(rate: float) -> bool:
        step_cost = learner_step_cost(plan, worker_set.learner, rate)
        return rate * max(
            step_cost.elapsed_seconds, step_cost.core_seconds / cores_per_learner
        ) <= straggler_efficiency(len(plan.sets))

    return min(_largest_rate(is_possible), 1e12)  # finite, so that actors can be counted


def _lockstep_rate(plan: ClusterPlan) -> float:
    """Return the rate of every set.

    Sets that share a host may reach less together than each alone.
    """
    upper_bound = min(_learner_limit(plan, worker_set) for worker_set in plan.sets)
    return _largest_rate(lambda rate: _is_feasible(plan, rate), upper_bound)


def _cores_suffice(plan: ClusterPlan, rate: float, number: int) -> bool:
    """Return whether learners leave the actors of one set enough cores for this rate."""
    if not plan.sets[number].actors.keys() & {worker_set.learner for worker_set in plan.sets}:
        return True  # no learner takes cores from these actors
    cores = cores_left_for_actors(plan, rate)
    supply = actor_supply(plan, cores, rate, actor_speed_fractions(plan, rate))[number]
    return min(cores.values()) >= 0 and supply >= rate * _TOLERANCE


def _is_feasible(plan: ClusterPlan, rate: float) -> bool:
    """Return whether cores, links and actors allow this rate of every set."""
    cores = cores_left_for_actors(plan, rate)
    if min(cores.values()) < 0 or not links_carry(plan, rate):
        return False
    return (
        min(actor_supply(plan, cores, rate, actor_speed_fractions(plan, rate))) >= rate * _TOLERANCE
    )


def _count_actors_for_set(plan: ClusterPlan, number: int) -> int:
    """Count the actors that a set's learner needs.

    They have cores of their own, unless all of the set's actors share learners' hosts.
    """
    worker_set = plan.sets[number]
    enlarged = worker_set._replace(
        actors={host_name: 1000 * count for host_name, count in worker_set.actors.items()}
    )
    sets = [*plan.sets[:number], enlarged, *plan.sets[number + 1 :]]
    limits = _set_limits(plan._replace(sets=sets), number)
    shared = worker_set.actors.keys() <= {each.learner for each in plan.sets}
    limit = min(limits.learner, limits.network, limits.cores if shared else math.inf)
    total_actor_rate = sum(
        n / actor_step_cost(plan, host_name, limit).elapsed_seconds
        for host_name, n in worker_set.actors.items()
    )
    return count_actors_needed(limit, total_actor_rate / sum(worker_set.actors.values()))


def _largest_rate(is_possible: Callable[[float], bool], upper_bound: float = 1e9) -> float:
    """Find the largest possible rate by bisection; inf if 1e9 is possible.

    All rates below a possible rate must be possible.
    """
    if is_possible(upper_bound):
        return upper_bound if upper_bound < 1e9 else math.inf
    low, high = 0.0, upper_bound
    while high - low > 1e-5 * high:
        midpoint = (low + high) / 2
        low, high = (midpoint, high) if is_possible(midpoint) else (low, midpoint)
    return low
