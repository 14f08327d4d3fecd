"""How fast a run can be: what actors supply, learners take, and the cores and links they share.

A run waits for its slowest part, so its rate is the least of its limits (`sandbox/planning.md`
holds that against measured runs). `sandbox/benchmarks/plan.py` asks `predict` what a CSV of hosts
would do; `verdict` reads the limits out of a run that runs, with `seen`. What a rate takes of hosts
is `demand`'s. Rates are steps/s of one worker set. Imports nothing that is heavy.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cost_model import (
    Fit,
    Plan,
    Set,
    carried,
    learners_at,
    left,
    of_actor,
    of_learner,
    pace,
    played,
)

_JITTER = 0.1  # by which the times of a learner's updates differ, each way
_ALMOST = 1 - 1e-9  # what is less by rounding alone is not less


class Limits(NamedTuple):
    """Of a worker set; inf where it has no such limit. Of equal ones the first is said to bind.

    Where a learner and actors share a host, each step counts at what it costs there.
    """

    supply: float  # what its actors could play, had they all cores of their hosts
    learner: float  # what its learner could train on, had learners all cores of their hosts
    network: float = math.inf  # what the links of its hosts carry
    cores: float = math.inf  # where actors share hosts with learners: what all of them can do

    @property
    def rate(self) -> float:
        """What the set can do by itself."""
        return min(self)

    @property
    def binds(self) -> str:
        """The name of the least."""
        return min(self._fields, key=lambda name: getattr(self, name))


class Prediction(NamedTuple):
    """What a plan would do."""

    limits: list[Limits]  # of each worker set
    enough: list[int]  # actors that would feed each set's learner: see `enough`
    rate: float  # of every set: they learn in lockstep, as the slowest
    slowest: int  # the set that the others wait for
    total: float  # of all sets


def seen(rate: float, wait: float, held: float) -> Limits:
    """Of a run of such a rate, whose learner and actors wait those shares of their time.

    Who never waits does what it can; who waits half of the time could do twice as much.
    """
    return Limits(supply=rate / (1 - min(held, 0.99)), learner=rate / (1 - min(wait, 0.99)))


def enough(limit: float, per_actor: float) -> int:
    """So many actors reach a limit."""
    return math.ceil(limit / per_actor * _ALMOST)


def predict(plan: Plan) -> Prediction:
    """Of a plan in which every set has actors, and every host a Kind."""
    limits = [_limits(plan, number) for number in range(len(plan.sets))]
    slowest = min(range(len(limits)), key=lambda number: limits[number].rate)
    needed = [_enough(plan, number) for number in range(len(limits))]
    rate = _rate(plan)
    return Prediction(limits, needed, rate, slowest, rate * len(plan.sets))


def straggling(learners: int, jitter: float = _JITTER) -> float:
    """What is left of each one's rate where every step waits for the slowest of so many.

    Their times are spread evenly, by `jitter` each way: the largest of N such times is
    1 + jitter (N - 1) / (N + 1) on average.
    """
    return 1 / (1 + jitter * (learners - 1) / (learners + 1))


def fitted(plans: Sequence[Plan], rates: Sequence[float], trust: float = 1e-8) -> Fit:
    """The Fit under which these plans come nearest to the total rates that were measured.

    `trust`: in the plans' costs; with 1 they are as good as a rate, and a factor must be worth it.
    As it is, they only say which of two fits it is that are as good.
    """

    def error(fit: Fit) -> float:
        found = [_rate(plan._replace(fit=fit)) * len(plan.sets) for plan in plans]
        misses = [math.log(f / r) ** 2 for f, r in zip(found, rates, strict=True)]
        return sum(misses) + trust * (math.log(fit.actor) ** 2 + math.log(fit.learner) ** 2)

    # A limit that does not bind has no slope: many starts.
    ways = [2 ** (power / 5) for power in range(-10, 11)]
    starts = sorted((Fit(a, b) for a in ways for b in ways), key=error)[:4]
    return min((_descended(start, error) for start in starts), key=error)


def _descended(best: Fit, error: Callable[[Fit], float]) -> Fit:
    """The least error near a start."""
    step = 2**0.1
    while step > 1.0002:
        ways = (1 / step, 1.0, step)
        near = [Fit(best.actor * a, best.learner * b) for a in ways for b in ways]
        best, before = min(near, key=error), best
        step = step if best != before else math.sqrt(step)
    return best


def _limits(plan: Plan, number: int) -> Limits:
    """Of one worker set, where the others keep up with it, and no more."""
    own = plan.sets[number]
    whole = {name: host.kind.cores for name, host in plan.hosts.items()}
    supply = _largest(lambda rate: played(plan, whole, rate, {})[number] >= rate * _ALMOST)
    cores = _largest(lambda rate: _computed(plan, rate, number), supply)
    return Limits(
        supply=supply,
        learner=_learner(plan, own),
        network=_largest(lambda rate: carried(plan, rate, own)),
        cores=cores if cores < supply else math.inf,
    )


def _learner(plan: Plan, own: Set) -> float:
    """Of a set's learner, where only others like it share its host."""
    each = plan.hosts[own.learner].kind.cores / learners_at(plan, own.learner)

    def fits(rate: float) -> bool:
        cost = of_learner(plan, own.learner, rate)
        return rate * max(cost.seconds, cost.cores / each) <= straggling(len(plan.sets))

    return min(_largest(fits), 1e12)  # to count actors by


def _rate(plan: Plan) -> float:
    """Of every set: sets that share a host may reach less together than each by itself."""
    most = min(_learner(plan, own) for own in plan.sets)
    return _largest(lambda rate: _goes(plan, rate), most)


def _computed(plan: Plan, rate: float, number: int) -> bool:
    """Whether learners leave the actors of one set the cores for such a rate."""
    if not plan.sets[number].actors.keys() & {own.learner for own in plan.sets}:
        return True  # nothing was taken from its supply
    cores = left(plan, rate)
    supply = played(plan, cores, rate, pace(plan, rate))[number]
    return min(cores.values()) >= 0 and supply >= rate * _ALMOST


def _goes(plan: Plan, rate: float) -> bool:
    """Whether all of it together is possible at such a rate of every set."""
    cores = left(plan, rate)
    if min(cores.values()) < 0 or not carried(plan, rate):
        return False
    return min(played(plan, cores, rate, pace(plan, rate))) >= rate * _ALMOST


def _enough(plan: Plan, number: int) -> int:
    """Actors that feed a set's learner; with cores of their own, unless all share learners'."""
    own = plan.sets[number]
    more = own._replace(actors={name: 1000 * count for name, count in own.actors.items()})
    sets = [*plan.sets[:number], more, *plan.sets[number + 1 :]]
    limits = _limits(plan._replace(sets=sets), number)
    shared = own.actors.keys() <= {each.learner for each in plan.sets}
    limit = min(limits.learner, limits.network, limits.cores if shared else math.inf)
    mean = sum(n / of_actor(plan, name, limit).seconds for name, n in own.actors.items())
    return enough(limit, mean / sum(own.actors.values()))


def _largest(fits: Callable[[float], bool], most: float = 1e9) -> float:
    """The largest rate that fits, where all less fits as well; inf where even 1e9 does."""
    if fits(most):
        return most if most < 1e9 else math.inf
    low, high = 0.0, most
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
