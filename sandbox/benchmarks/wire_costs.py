"""What the wire between an actor and its learner costs either end; `components.py` asks.

Both ends are measuring processes (`worker.py`) of this machine, with a thread each.
"""

from collections.abc import Callable
from typing import NamedTuple

from worker_client import Process, both_ends

from impala_mm.config.settings import Config


class Wire(NamedTuple):
    """What travels between an actor and its learner, and what that costs either. CPU seconds."""

    unroll_bytes: float  # of one unroll, as it is sent
    parameter_bytes: float  # of the acting parameters, as they are sent
    pack: float  # of the actor, per unroll: cutting and encoding it
    send: float  # of the actor, per unroll: compressing and sending it, --num_envs in a message
    receive: float  # of the learner, per unroll: taking it in, unpacked, and into a batch
    pull: float  # of the actor, per pull of parameters: fetching them
    serve: float  # of the learner, per pull: answering it
    publish: float  # of the learner, per update: making the parameters what actors get


def measure(
    config: Config, seconds: float = 1.0, say: Callable[[str], None] = lambda _: None
) -> Wire:
    """Each part of it for so many seconds."""
    say("the wire, then the rest")
    envs = config.num_envs
    learner, actor = Process(config, 1), Process(config, 1)

    try:
        made = learner.ask(prepare="publishing", batch=1)
        answer = learner.ask(go=seconds, part="publishing", batch=1)
        publish = answer["cpu"] / answer["steps"]
        address = learner.ask(prepare="serve", batch=envs)["address"]
        actor.ask(prepare="packing", batch=envs)
        pack, _ = both_ends(learner, actor, seconds, "packing", envs)
        sent = actor.ask(prepare="send", batch=envs, address=address)
        send, receive = both_ends(learner, actor, seconds, "send", envs)
        actor.ask(prepare="pull", batch=1, address=address)
        pull, serve = both_ends(learner, actor, seconds, "pull", 1)
    finally:
        learner.end()
        actor.end()
    size, parameters = sent["unroll_bytes"], made["parameter_bytes"]
    return Wire(size, parameters, pack, send, receive, pull, serve, publish)
