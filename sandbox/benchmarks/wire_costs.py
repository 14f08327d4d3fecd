"""What the wire between an actor and its learner costs either end; `components.py` asks.

Both ends are measuring processes (`worker.py`) of this machine, with a thread each.
"""

from typing import NamedTuple

from progress import ShowProgress
from worker_client import WorkerProcess, measure_both_ends

from impala_mm.config.settings import Config


class WireCosts(NamedTuple):
    """What travels between an actor and its learner, and what that costs either. CPU seconds."""

    unroll_bytes: float  # of one unroll, as it is sent
    parameter_bytes: float  # of the acting parameters, as they are sent
    pack: float  # of the actor, per unroll: cutting and encoding it
    send: float  # of the actor, per unroll: compressing and sending it, --num_envs in a message
    receive: float  # of the learner, per unroll: taking it in, unpacked, and into a batch
    pull: float  # of the actor, per pull of parameters: fetching them
    serve: float  # of the learner, per pull: answering it
    publish: float  # of the learner, per update: making the parameters what actors get


def measure_wire(
    config: Config, seconds: float = 1.0, show_progress: ShowProgress = lambda _: None
) -> WireCosts:
    """Measures each part of it for so many seconds."""
    show_progress("the wire, then the rest")
    envs = config.num_envs
    learner, actor = WorkerProcess(config, 1), WorkerProcess(config, 1)

    try:
        published = learner.request(prepare="publish_parameters", batch=1)
        answer = learner.request(measure_seconds=seconds, task="publish_parameters", batch=1)
        publish = answer["cpu"] / answer["steps"]
        address = learner.request(prepare="receive_unrolls", batch=envs)["address"]
        actor.request(prepare="cut_unrolls", batch=envs)
        pack, _ = measure_both_ends(learner, actor, seconds, "cut_unrolls", envs)
        sent = actor.request(prepare="send_unrolls", batch=envs, address=address)
        send, receive = measure_both_ends(learner, actor, seconds, "send_unrolls", envs)
        actor.request(prepare="pull_parameters", batch=1, address=address)
        pull, serve = measure_both_ends(learner, actor, seconds, "pull_parameters", 1)
    finally:
        learner.kill()
        actor.kill()
    size, parameters = sent["unroll_bytes"], published["parameter_bytes"]
    return WireCosts(size, parameters, pack, send, receive, pull, serve, publish)
