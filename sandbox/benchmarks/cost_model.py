"""What a run of a given rate takes of its hosts' cores and links; `capacity` asks how much fits.

The costs come from measurements of each kind of host (`sandbox/benchmarks/plan.py` makes them), the
hosts from a CSV. Rates are steps/s of each worker set: learners step together, so all have the
same. Pure arithmetic; it imports nothing of the rest.
"""

import math
from typing import NamedTuple

_GBIT = 125e6  # bytes/s
_ACTION_BYTES = 8  # down per step, with inference at the learner


class Kind(NamedTuple):
    """A kind of host, measured with one environment, network and shape.

    Seconds are core-seconds per step where nothing else is said.
    """

    cores: float
    environment: float  # an actor's one thread: this,
    inference: float  # this,
    packing: float  # and Python around them and encoding, one after the other
    sending: float  # an actor's other threads, beside that
    loading: float  # an actor's one thread, for a whole new policy
    pulling: float  # for one pull of the parameters, at an actor's host
    training: float
    training_secs: float  # seconds per step, not of cores: an update alone, on all cores or a GPU
    receiving: float  # beside training: from the wire into the queue, and decoded
    publishing: float  # for one update
    serving: float  # for one pull, at the learner's host
    # Of all that follow 0 says that it was not measured.
    # Where an actor's groups of environments take turns, environment, inference and packing:
    turning: float = 0.0
    turning_secs: float = 0.0  # seconds per step, not of cores: while one steps, another acts
    # How many times its cost a step costs where a learner and actors use all cores between them:
    actor_beside: float = 0.0  # environment, inference and packing
    learner_beside: float = 0.0  # training
    # Where the learner infers:
    asking: float = 0.0  # for actions: an actor's one thread beside its environments
    answering: float = 0.0  # the learner, inference and making batches of it included
    central_secs: float = 0.0  # that inference, in seconds per step, not of cores


class Shape(NamedTuple):
    """What the flags make of a run, and what then crosses the wire."""

    num_envs: int  # of an actor
    unroll_length: int
    batch_size: int  # unrolls of each learner and update
    unroll_bytes: float  # up, for each unroll
    parameter_bytes: float  # down, for each pull
    gradient_bytes: float  # of one update, of one learner
    min_pull_secs: float  # between pulls of one host
    inference: str = "actor"  # or "learner": observations go up and actions down, no parameters
    env_groups: int = 1  # of an actor with a network; they take turns


class Host(NamedTuple):
    """One machine."""

    kind: Kind
    gbit: float = math.inf  # of its link, each way


class Set(NamedTuple):
    """A worker set: a learner and the actors that feed it."""

    learner: str  # its host
    actors: dict[str, int]  # how many, by host


class Fit(NamedTuple):
    """How many times its measured cost a step costs in a run, by what is not measured."""

    actor: float = 1.0
    learner: float = 1.0


class Plan(NamedTuple):
    """What is to run, and where."""

    hosts: dict[str, Host]
    sets: list[Set]
    shape: Shape
    fit: Fit = Fit()


class Cost(NamedTuple):
    """Of one step, in one process."""

    seconds: float  # in which no other step of it is made
    cores: float  # core-seconds, all its threads together


def of_actor(plan: Plan, name: str, rate: float) -> Cost:
    """Stepping environments on this host, and what goes with it, where each set has such a rate."""
    times = _dearer(plan.hosts[name].kind.actor_beside, _busy(plan, name, rate))
    return _acting(plan, name, times)


def _acting(plan: Plan, name: str, times: float = 1.0) -> Cost:
    """Where what is computed costs so many times what it costs alone."""
    shape, kind = plan.shape, plan.hosts[name].kind
    if shape.inference == "learner":
        serial = kind.environment * times + kind.asking
        return _cost(serial, serial, plan.fit.actor)
    cores = seconds = kind.environment + kind.inference + kind.packing
    if shape.env_groups > 1 and kind.turning:
        cores, seconds = kind.turning, kind.turning_secs
    loading = kind.loading / (shape.num_envs * shape.unroll_length)
    cores, seconds = cores * times + loading, seconds * times + loading
    return _cost(seconds, cores + kind.sending, plan.fit.actor)


def of_learner(plan: Plan, name: str, rate: float) -> Cost:
    """Training on this host, and what goes with it, where each set has such a rate."""
    times = _dearer(plan.hosts[name].kind.learner_beside, _busy(plan, name, rate))
    return _learning(plan, name, times)


def _learning(plan: Plan, name: str, times: float = 1.0) -> Cost:
    """Where what the cores compute costs so many times what it costs alone."""
    shape, kind = plan.shape, plan.hosts[name].kind
    training = kind.training * times
    # Of an update on a GPU the cores hold up no more than they do of it.
    seconds = kind.training_secs + (times - 1) * min(kind.training, kind.training_secs)
    if shape.inference == "learner":
        seconds += kind.central_secs
        return _cost(seconds, training + kind.answering, plan.fit.learner)
    publishing = kind.publishing / (shape.batch_size * shape.unroll_length)
    return _cost(seconds + publishing, training + kind.receiving + publishing, plan.fit.learner)


def _dearer(beside: float, busy: float) -> float:
    """How many times its cost a step costs: as was measured on busy cores, less where few are."""
    return 1 + max(beside - 1, 0.0) * busy


def _busy(plan: Plan, name: str, rate: float) -> float:
    """The share of a host's cores that such a rate takes, if a learner is beside actors there."""
    learners = learners_at(plan, name)
    parts = [s.actors.get(name, 0) / sum(s.actors.values()) for s in plan.sets] if learners else []
    if not any(parts):
        return 0.0
    kind = plan.hosts[name].kind

    def taken(busy: float) -> float:
        acting = _acting(plan, name, _dearer(kind.actor_beside, busy)).cores
        learning = _learning(plan, name, _dearer(kind.learner_beside, busy)).cores
        return rate * (sum(parts) * acting + learners * learning) / kind.cores

    # What is busy makes steps dearer, and so busier: busy = none + busy * (full - none).
    none, full = taken(0.0), taken(1.0)
    return none / (1 - (full - none)) if full < 1 else 1.0


def learners_at(plan: Plan, name: str) -> int:
    """How many have this host."""
    return [own.learner for own in plan.sets].count(name)


def _actors_at(plan: Plan, name: str) -> int:
    """Of all sets."""
    return sum(own.actors.get(name, 0) for own in plan.sets)


def _cost(seconds: float, cores: float, times: float) -> Cost:
    return Cost(max(seconds * times, 1e-12), max(cores * times, 1e-12))  # to divide by


def left(plan: Plan, rate: float) -> dict[str, float]:
    """Cores of each host that learners at such a rate, and pulls, leave to the actors."""
    cores = {name: host.kind.cores for name, host in plan.hosts.items()}
    for own in plan.sets:
        cores[own.learner] -= rate * of_learner(plan, own.learner, rate).cores
    for name, host in plan.hosts.items():
        for learner, pulls in _pulls(plan, rate, name).items():
            cores[name] -= pulls * host.kind.pulling * plan.fit.actor
            cores[learner] -= pulls * plan.hosts[learner].kind.serving * plan.fit.learner
    return cores


def pace(plan: Plan, rate: float) -> dict[str, float]:
    """What is left of its actors' own speed at each host, by name, beside learners at such a rate.

    Actors give way: while an update is made they go as fast as the cores do that it leaves them.
    What they do not need while there is none is idle, and makes up for nothing.
    """
    paces = dict.fromkeys(plan.hosts, 1.0)
    for name, host in plan.hosts.items():
        acting, learning = of_actor(plan, name, rate), of_learner(plan, name, rate)
        needed = _actors_at(plan, name) * acting.cores / acting.seconds
        taken = learners_at(plan, name) * learning.cores
        if needed and taken:
            # Learners that want more cores than there are take longer for it.
            seconds = max(learning.seconds, taken / host.kind.cores)
            share = min((host.kind.cores - taken / seconds) / needed, 1.0)
            paces[name] -= (1 - share) * min(rate * seconds, 1.0)
    return paces


def played(
    plan: Plan, cores: dict[str, float], need: float, paces: dict[str, float]
) -> list[float]:
    """What each set's actors play with so many cores of each host, if that is no more than needed.

    Actors share their host's cores evenly; what one set is held back from is the others'. `paces`
    as of `pace`; at hosts that are not in it no update holds actors back.
    """
    cores, waiting, rates = dict(cores), set(range(len(plan.sets))), [0.0] * len(plan.sets)
    costs = {name: of_actor(plan, name, need) for name in cores}
    while waiting:
        crowd = {name: sum(plan.sets[s].actors.get(name, 0) for s in waiting) for name in cores}
        found: dict[int, dict[str, float]] = {}  # by set and host
        for number in waiting:
            found[number] = {}
            for name, count in plan.sets[number].actors.items():
                cost, share = costs[name], cores[name] / crowd[name]
                alone = paces.get(name, 1.0) / cost.seconds
                found[number][name] = count * min(alone, share / cost.cores)
            rates[number] = sum(found[number].values())
        fed = {number for number in waiting if rates[number] >= need}
        if not fed:
            break
        for number in fed:
            for name, rate in found[number].items():
                taken = rate * need / rates[number] if rates[number] else 0.0
                cores[name] -= taken * costs[name].cores
            rates[number] = need
        waiting -= fed
    return rates


def carried(plan: Plan, rate: float, own: Set | None = None) -> bool:
    """Whether the links of all hosts, or those of one set, carry such a rate of every set."""
    shape, hosts = plan.shape, plan.hosts
    up, down = dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0)  # bytes/s that leave, that come
    for each in plan.sets:
        for name, count in each.actors.items():
            if name != each.learner:
                part = rate * count / sum(each.actors.values())
                up[name] += part * shape.unroll_bytes / shape.unroll_length
                down[each.learner] += part * shape.unroll_bytes / shape.unroll_length
                if shape.inference == "learner":
                    up[each.learner] += part * _ACTION_BYTES
                    down[name] += part * _ACTION_BYTES
    for name in hosts:
        for learner, pulls in _pulls(plan, rate, name).items():
            if learner != name:
                up[learner] += pulls * shape.parameter_bytes
                down[name] += pulls * shape.parameter_bytes
    ring = {each.learner for each in plan.sets}  # of the all-reduce
    updates = rate / (shape.batch_size * shape.unroll_length)
    for name in ring:
        for link in (up, down):
            link[name] += updates * shape.gradient_bytes * 2 * (len(ring) - 1) / len(ring)
    touched = hosts if own is None else {own.learner, *own.actors}
    return all(max(up[n], down[n]) <= hosts[n].gbit * _GBIT for n in touched)


def _pulls(plan: Plan, rate: float, name: str) -> dict[str, float]:
    """A second, of one host's actors together, by learners' hosts.

    One pull serves them all, at most every min_pull_secs, and none is made without something new,
    nor before an actor has sent what it played.
    """
    shape = plan.shape
    parts: dict[str, float] = {}  # steps/s
    for own in plan.sets:
        if own.actors.get(name):
            part = rate * own.actors[name] / sum(own.actors.values())
            parts[own.learner] = parts.get(own.learner, 0.0) + part
    total = sum(parts.values())
    if shape.inference == "learner" or not total:
        return {}
    versions = rate / (shape.batch_size * shape.unroll_length)
    pulls = min(versions, total / (shape.num_envs * shape.unroll_length))
    if shape.min_pull_secs > 0:
        pulls = min(pulls, 1 / shape.min_pull_secs)
    return {learner: pulls * part / total for learner, part in parts.items()}
