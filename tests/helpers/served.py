"""Program: a learner's server without a training, which a test may end: python served.py KIND.

KIND is "unrolls", "rounds" or "inference". It prints its address and identity as JSON, takes what
arrives in its queue, and ends with its input.
"""

import json
import os
import sys
import threading

import remotely
import unrolls
from processes import free_port

from impala_mm.data.unroll_check import UnrollCheck
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.rounds import Rounds
from impala_mm.transport.server import Server

LEVEL = "telling:Telling-v0"
COLUMNS = 4
_IDENTITY = {"run_id": "run", "level_name": LEVEL}


def _serve(kind):
    """Return the server."""
    if kind == "inference":
        identity = _IDENTITY | {"inference": "learner"}
        return remotely.Remote(remotely.Random(LEVEL, 3), identity=identity).server
    address = f"127.0.0.1:{free_port()}"
    server = Server(
        *(address, HeldAddress(address), remotely.TOKEN, _IDENTITY, 8, _say),
        unroll_bytes=unrolls.CODEC.size,
        rounds=Rounds(COLUMNS, _say) if kind == "rounds" else None,
        find_mistake=UnrollCheck(unrolls.SPEC, ActionSpec(Discrete(3))).mistake,
    )
    server.publish(0, lambda: b"parameters")
    return server


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _take(server):
    """Take unrolls for ever, one by one or by rounds; after a round make an update."""
    version = 0
    while True:
        count = server.rounds.close(0.2) if server.rounds else 1
        if count is None:
            continue
        server.queue.dequeue_many(count)
        for report in server.actors.take_reports():
            assert report.level == LEVEL
            assert report.episodes.shape[1:] == (4,)
        if server.rounds:
            version += 1
            server.begin_update()
            server.publish(version, lambda: b"parameters")


def _take_or_end(server):
    try:
        _take(server)
    finally:
        os._exit(1)


def main():
    """Serve until the input ends."""
    server = _serve(sys.argv[1])
    threading.Thread(target=_take_or_end, args=[server], daemon=True).start()
    print(json.dumps([server.listener.address, server._identity]), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
