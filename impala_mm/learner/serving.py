"""The server by which actors reach a learner: its queue, and what its algorithm needs there.

`setup` calls this; `transport.server` knows neither flags nor algorithms.
"""

import time

from impala_mm.algorithms.agent import Agent, config_for_acting, make_agent
from impala_mm.algorithms.interface import Role
from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.data.unroll_check import UnrollCheck
from impala_mm.inference.batched_inference import BatchedInference
from impala_mm.learner.start import Start
from impala_mm.runtime import devices, ports, starter
from impala_mm.runtime.log import Say
from impala_mm.transport.rounds import Rounds
from impala_mm.transport.server import Server


def queue_capacity(config: Config, agent: Agent) -> int:
    """Return the number of unrolls for which the queue has room: at least those of a round."""
    capacity = config.queue_capacity or config.batch_size
    # A round is in the queue before it is taken.
    if agent.algorithm.rounds:
        return max(capacity, config.batch_size)
    if config.deterministic_run:
        return max(capacity, auto.num_columns(config, agent.spec))
    return capacity


def listen(
    start: Start,
    config: Config,
    agent: Agent,
    run_id: str,
    inference: str,
    token: str,
    capacity: int,
) -> Server:
    """Return a server that listens where this learner does; print where.

    `inference` says where actions are chosen, and its actors must have the `token`.
    """
    held, say, rank = start.held, start.say, start.group.rank
    address = start.addresses[rank]  # by which actors reach it
    if not starter.is_local_run() and (warning := ports.loopback_warning(held.address)):
        say(warning)
    if config.transport_security == "none":
        say(
            f"--transport_security=none: what actors send and receive is not encrypted, and "
            f"whoever reaches {held.address} can slow this learner down or end it"
        )
    unroll = agent.algorithm.unroll
    changed = {"run_id": run_id, "learners": start.addresses, "inference": inference}
    try:
        server = Server(
            address,
            held,
            token,
            identity=agent.identity | changed,
            queue_capacity=capacity,
            say=say,
            inference=_build_inference(config, agent, rank) if inference == "learner" else None,
            unroll_bytes=UnrollCodec(unroll).size,
            rounds=_make_rounds(config, agent, say),
            offers_socket=config.transport_security == "auto",
            find_mistake=UnrollCheck(unroll, agent.spec.actions).mistake,
        )
    except OSError as error:
        flags.refuse(f"the learner cannot listen: {error}")
    reached = f"; actors reach it at {address}" if address != held.address else ""
    say(f"listening at {held.address}{reached} ({time.monotonic() - start.began:.1f} s)")
    return server


def _make_rounds(config: Config, agent: Agent, say: Say) -> Rounds | None:
    """Return the rounds of an algorithm that has some, or the turns of --deterministic_run."""
    if config.debug:  # no actor connects
        return None
    alone = config.deterministic_run
    if agent.algorithm.rounds:
        overlap = agent.algorithm.rounds_overlap
        if overlap:
            say("rounds overlap: actors play one by the policy before the update on the last one")
        return Rounds(config.batch_size, say, overlap, alone)
    if alone:
        return Rounds(auto.num_columns(config, agent.spec), say, alone=True)
    return None


def _build_inference(config: Config, agent: Agent, rank: int) -> BatchedInference:
    """Return inference with a copy of the network, which does not change during an update."""
    copy = make_agent(config_for_acting(config), rank, agent.levels, Role.INFERENCE)
    return BatchedInference(copy.algorithm, copy.layout, devices.training_device())
