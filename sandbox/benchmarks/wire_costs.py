"""The cost of the wire for an actor and its learner, measured for `components.py`.

Both ends are measuring processes (`worker.py`) of this machine with one thread each.
"""

from typing import NamedTuple

from progress import ShowProgress
from worker_client import WorkerProcess, measure_both_ends

from impala_mm.config.settings import Config


class WireCosts(NamedTuple):
    """The bytes between an actor and its learner, and the CPU seconds that they cost either end."""

    unroll_bytes: float  # bytes of one unroll on the wire
    parameter_bytes: float  # bytes of the acting parameters on the wire
    pack: float  # actor, per unroll: cutting and encoding it
    send: float  # actor, per unroll: compressing and sending it, --num_envs per message
    receive: float  # learner, per unroll: receiving and decoding it, and adding it to a batch
    pull: float  # actor, per pull of the parameters: downloading them
    serve: float  # learner, per pull: answering it
    publish: float  # learner, per update: making the parameters available to actors


def measure_wire(
    config: Config, seconds: float = 1.0, show_progress: ShowProgress = lambda _: None
) -> WireCosts:
    """Measure each cost of the wire for `seconds`."""
    show_progress("the wire, then the other parts")
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
