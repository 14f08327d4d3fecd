"""The CPU time and network bytes that a run with a given rate takes from its hosts.

`throughput_model.py` searches for the largest rate that fits.

The costs come from measurements of each kind of host, which `sandbox/benchmarks/plan.py` makes; the
hosts come from a CSV. Rates are steps/s of each worker set: learners step together, so all sets
have the same rate. This module is pure arithmetic and imports none of the project's modules.
"""

import math
from typing import NamedTuple

_BYTES_PER_GBIT = 125e6  # bytes/s
_ACTION_BYTES = 8  # bytes per step to the actor, with inference at the learner


class HostCosts(NamedTuple):
    """The costs of a step on a kind of host, for one environment, network and run shape.

    Values are core-seconds per step unless a comment says otherwise.
    """

    cores: float
    # An actor's main thread runs these three one after another:
    environment: float
    inference: float
    packing: float  # the Python code around both, and encoding
    sending: float  # an actor's other threads, in parallel
    loading: float  # an actor's main thread, per new policy
    pulling: float  # an actor's host, per pull of the parameters
    training: float
    training_secs: float  # elapsed seconds per step: an update alone, on all cores or a GPU
    receiving: float  # in parallel to training: from the wire into the queue, and decoding
    publishing: float  # per update
    serving: float  # the learner's host, per pull of the parameters
    # In all fields below, 0 means that the cost was not measured.
    # If groups of environments take turns, environment, inference and packing together cost:
    turning: float = 0.0
    turning_secs: float = 0.0  # elapsed seconds per step: one group steps while another acts
    # The factor by which a step costs more while a learner and actors use all cores together:
    actor_beside: float = 0.0  # environment, inference and packing
    learner_beside: float = 0.0  # training
    # With inference at the learner:
    asking: float = 0.0  # an actor's main thread, to request actions
    answering: float = 0.0  # the learner, for inference and making batches of requests
    central_secs: float = 0.0  # elapsed seconds of inference per step


class RunShape(NamedTuple):
    """The sizes of a run that its flags determine, and the resulting bytes on the wire."""

    num_envs: int  # environments of an actor
    unroll_length: int
    batch_size: float  # new unrolls per update of each learner
    unroll_bytes: float  # bytes to the learner per unroll
    parameter_bytes: float  # bytes to an actor's host per pull
    gradient_bytes: float  # bytes per update of one learner
    min_pull_secs: float  # seconds between two pulls of one host
    inference: str = "actor"  # or "learner": actors send observations and receive actions
    env_groups: int = 1  # groups of environments that take turns, if the actor infers


class Host(NamedTuple):
    """One machine."""

    costs: HostCosts
    gbit: float = math.inf  # Gbit/s of its link in each direction


class WorkerSet(NamedTuple):
    """A worker set: a learner and the actors that feed it."""

    learner: str  # the learner's host
    actors: dict[str, int]  # number of actors by host


class CostFactors(NamedTuple):
    """The factors by which a step costs more in a real run than was measured."""

    actor: float = 1.0
    learner: float = 1.0


class ClusterPlan(NamedTuple):
    """The hosts of a run, and which processes run on each."""

    hosts: dict[str, Host]
    sets: list[WorkerSet]
    shape: RunShape
    factors: CostFactors = CostFactors()


class StepCost(NamedTuple):
    """The cost of one step for one process."""

    elapsed_seconds: float  # time in which the process makes no other step
    core_seconds: float  # CPU time of all its threads


def actor_step_cost(plan: ClusterPlan, host_name: str, rate: float) -> StepCost:
    """Return an actor's cost of a step on this host if each worker set has this rate."""
    slowdown = _slowdown(
        plan.hosts[host_name].costs.actor_beside, _core_utilization(plan, host_name, rate)
    )
    return _actor_cost_with_slowdown(plan, host_name, slowdown)


def _actor_cost_with_slowdown(plan: ClusterPlan, host_name: str, slowdown: float = 1.0) -> StepCost:
    """Return an actor's cost of a step if its computation is `slowdown` times as expensive."""
    shape, costs = plan.shape, plan.hosts[host_name].costs
    if shape.inference == "learner":
        serial = costs.environment * slowdown + costs.asking
        return _scaled_cost(serial, serial, plan.factors.actor)
    cores = seconds = costs.environment + costs.inference + costs.packing
    if shape.env_groups > 1 and costs.turning:
        cores, seconds = costs.turning, costs.turning_secs
    loading = costs.loading / (shape.num_envs * shape.unroll_length)
    cores, seconds = cores * slowdown + loading, seconds * slowdown + loading
    return _scaled_cost(seconds, cores + costs.sending, plan.factors.actor)


def learner_step_cost(plan: ClusterPlan, host_name: str, rate: float) -> StepCost:
    """Return a learner's cost of a step on this host if each worker set has this rate."""
    slowdown = _slowdown(
        plan.hosts[host_name].costs.learner_beside, _core_utilization(plan, host_name, rate)
    )
    return _learner_cost_with_slowdown(plan, host_name, slowdown)


def _learner_cost_with_slowdown(
    plan: ClusterPlan, host_name: str, slowdown: float = 1.0
) -> StepCost:
    """Return a learner's cost of a step if its computation is `slowdown` times as expensive."""
    shape, costs = plan.shape, plan.hosts[host_name].costs
    training = costs.training * slowdown
    # An update on a GPU is delayed only by the part of it that the cores compute.
    seconds = costs.training_secs + (slowdown - 1) * min(costs.training, costs.training_secs)
    if shape.inference == "learner":
        seconds += costs.central_secs
        return _scaled_cost(seconds, training + costs.answering, plan.factors.learner)
    publishing = costs.publishing / (shape.batch_size * shape.unroll_length)
    return _scaled_cost(
        seconds + publishing, training + costs.receiving + publishing, plan.factors.learner
    )


def _slowdown(full_slowdown: float, utilization: float) -> float:
    """Scale the slowdown that was measured with all cores busy to the given utilization."""
    return 1 + max(full_slowdown - 1, 0.0) * utilization


def _core_utilization(plan: ClusterPlan, host_name: str, rate: float) -> float:
    """Return the utilization of a host's cores; 0 unless learners and actors share them."""
    learners = count_learners_on(plan, host_name)
    actor_shares = (
        [
            worker_set.actors.get(host_name, 0) / sum(worker_set.actors.values())
            for worker_set in plan.sets
        ]
        if learners
        else []
    )
    if not any(actor_shares):
        return 0.0
    costs = plan.hosts[host_name].costs

    def utilization_at(utilization: float) -> float:
        acting = _actor_cost_with_slowdown(
            plan, host_name, _slowdown(costs.actor_beside, utilization)
        ).core_seconds
        learning = _learner_cost_with_slowdown(
            plan, host_name, _slowdown(costs.learner_beside, utilization)
        ).core_seconds
        return rate * (sum(actor_shares) * acting + learners * learning) / costs.cores

    # Busy cores make steps more expensive, which keeps the cores even busier:
    # utilization = base + utilization * (full - base).
    base, full = utilization_at(0.0), utilization_at(1.0)
    return base / (1 - (full - base)) if full < 1 else 1.0


def count_learners_on(plan: ClusterPlan, host_name: str) -> int:
    """Count the learners on this host."""
    return [worker_set.learner for worker_set in plan.sets].count(host_name)


def _count_actors_on(plan: ClusterPlan, host_name: str) -> int:
    """Count the actors of all worker sets on this host."""
    return sum(worker_set.actors.get(host_name, 0) for worker_set in plan.sets)


def _scaled_cost(seconds: float, cores: float, factor: float) -> StepCost:
    return StepCost(max(seconds * factor, 1e-12), max(cores * factor, 1e-12))  # never 0


def cores_left_for_actors(plan: ClusterPlan, rate: float) -> dict[str, float]:
    """Return each host's cores that learners at this rate, and pulls, leave to actors."""
    cores = {host_name: host.costs.cores for host_name, host in plan.hosts.items()}
    for worker_set in plan.sets:
        cores[worker_set.learner] -= (
            rate * learner_step_cost(plan, worker_set.learner, rate).core_seconds
        )
    for host_name, host in plan.hosts.items():
        for learner, pulls in _pulls_per_second(plan, rate, host_name).items():
            cores[host_name] -= pulls * host.costs.pulling * plan.factors.actor
            cores[learner] -= pulls * plan.hosts[learner].costs.serving * plan.factors.learner
    return cores


def actor_speed_fractions(plan: ClusterPlan, rate: float) -> dict[str, float]:
    """Return the share of their speed, by host, that actors keep beside learners.

    `rate` is the rate of every worker set. Actors have a lower priority: during an update they only
    get the cores that it leaves. Cores that they leave idle between updates do not compensate for
    this.
    """
    fractions = dict.fromkeys(plan.hosts, 1.0)
    for host_name, host in plan.hosts.items():
        acting, learning = (
            actor_step_cost(plan, host_name, rate),
            learner_step_cost(plan, host_name, rate),
        )
        actor_cores = (
            _count_actors_on(plan, host_name) * acting.core_seconds / acting.elapsed_seconds
        )
        learner_cores = count_learners_on(plan, host_name) * learning.core_seconds
        if actor_cores and learner_cores:
            # An update takes longer if the learners would use more cores than the host has.
            seconds = max(learning.elapsed_seconds, learner_cores / host.costs.cores)
            share = min((host.costs.cores - learner_cores / seconds) / actor_cores, 1.0)
            fractions[host_name] -= (1 - share) * min(rate * seconds, 1.0)
    return fractions


def actor_supply(
    plan: ClusterPlan,
    cores: dict[str, float],
    required_rate: float,
    speed_fractions: dict[str, float],
) -> list[float]:
    """Return the steps/s of each set's actors with the given number of cores of each host.

    No set gets more than `required_rate`. Actors share their host's cores evenly; what one set does
    not need is left to the other sets. `speed_fractions` comes from `actor_speed_fractions`; on
    hosts that it lacks, no update slows actors down.
    """
    cores, unsatisfied, rates = dict(cores), set(range(len(plan.sets))), [0.0] * len(plan.sets)
    step_costs = {host_name: actor_step_cost(plan, host_name, required_rate) for host_name in cores}
    while unsatisfied:
        actors_by_host = {
            host_name: sum(plan.sets[s].actors.get(host_name, 0) for s in unsatisfied)
            for host_name in cores
        }
        rates_by_host: dict[int, dict[str, float]] = {}  # by set and host
        for number in unsatisfied:
            rates_by_host[number] = {}
            for host_name, count in plan.sets[number].actors.items():
                step_cost, share = (
                    step_costs[host_name],
                    cores[host_name] / actors_by_host[host_name],
                )
                alone = speed_fractions.get(host_name, 1.0) / step_cost.elapsed_seconds
                rates_by_host[number][host_name] = count * min(
                    alone, share / step_cost.core_seconds
                )
            rates[number] = sum(rates_by_host[number].values())
        satisfied = {number for number in unsatisfied if rates[number] >= required_rate}
        if not satisfied:
            break
        for number in satisfied:
            for host_name, rate in rates_by_host[number].items():
                taken = rate * required_rate / rates[number] if rates[number] else 0.0
                cores[host_name] -= taken * step_costs[host_name].core_seconds
            rates[number] = required_rate
        unsatisfied -= satisfied
    return rates


def links_carry(plan: ClusterPlan, rate: float, worker_set: WorkerSet | None = None) -> bool:
    """Return whether the links of all hosts, or of one set's hosts, carry this rate."""
    shape, hosts = plan.shape, plan.hosts
    up, down = dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0)  # bytes/s sent and received
    for each in plan.sets:
        for host_name, count in each.actors.items():
            if host_name != each.learner:
                actor_rate = rate * count / sum(each.actors.values())
                up[host_name] += actor_rate * shape.unroll_bytes / shape.unroll_length
                down[each.learner] += actor_rate * shape.unroll_bytes / shape.unroll_length
                if shape.inference == "learner":
                    up[each.learner] += actor_rate * _ACTION_BYTES
                    down[host_name] += actor_rate * _ACTION_BYTES
    for host_name in hosts:
        for learner, pulls in _pulls_per_second(plan, rate, host_name).items():
            if learner != host_name:
                up[learner] += pulls * shape.parameter_bytes
                down[host_name] += pulls * shape.parameter_bytes
    learner_hosts = {each.learner for each in plan.sets}  # hosts that take part in the all-reduce
    updates = rate / (shape.batch_size * shape.unroll_length)
    for host_name in learner_hosts:
        for link in (up, down):
            link[host_name] += (
                updates * shape.gradient_bytes * 2 * (len(learner_hosts) - 1) / len(learner_hosts)
            )
    checked_hosts = hosts if worker_set is None else {worker_set.learner, *worker_set.actors}
    return all(max(up[n], down[n]) <= hosts[n].gbit * _BYTES_PER_GBIT for n in checked_hosts)


def _pulls_per_second(plan: ClusterPlan, rate: float, host_name: str) -> dict[str, float]:
    """Return by learner's host the pulls per second of all actors on one host.

    One pull serves all actors of a host, at most every min_pull_secs. A pull needs a new policy,
    and an actor that has sent its unrolls.
    """
    shape = plan.shape
    rates_by_learner: dict[str, float] = {}  # steps/s
    for worker_set in plan.sets:
        if worker_set.actors.get(host_name):
            actor_rate = rate * worker_set.actors[host_name] / sum(worker_set.actors.values())
            rates_by_learner[worker_set.learner] = (
                rates_by_learner.get(worker_set.learner, 0.0) + actor_rate
            )
    total = sum(rates_by_learner.values())
    if shape.inference == "learner" or not total:
        return {}
    versions = rate / (shape.batch_size * shape.unroll_length)
    pulls = min(versions, total / (shape.num_envs * shape.unroll_length))
    if shape.min_pull_secs > 0:
        pulls = min(pulls, 1 / shape.min_pull_secs)
    return {learner: pulls * actor_rate / total for learner, actor_rate in rates_by_learner.items()}
