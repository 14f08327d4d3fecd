"""The cost that TLS adds to the calls between an actor and its learner, on this machine.

    python sandbox/benchmarks/encryption.py [--seconds=20] [--save=FILE.json]

A learner's process offers the same functions three times: at a plain port, behind its front (TLS),
and at its Unix socket, which actors of the same machine use. The ways take turns, a call each, so
that other load on the machine hits all alike. Printed are medians and the fastest tenth, which
other load disturbs less, and their ratios to plain.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from impala_mm.runtime import lifecycle, run_token

_PULL_BYTES = 6_800_000
_WAYS = "plain", "tls", "socket"
_IDENTITY = {"run_id": "measured", "level_name": "catch"}


def serve() -> None:
    """Serve as the learner until the standard input closes."""
    lifecycle.load_tensorflow(1, 1)
    import real_run  # noqa: PLC0415

    from impala_mm.runtime.ports import HeldAddress  # noqa: PLC0415
    from impala_mm.transport.server import Server  # noqa: PLC0415

    token, addresses, servers = run_token.make(), [], []
    for content in (token.partition("\n")[0], token):
        address = real_run.free_address()
        server = Server(address, HeldAddress(address), content, _IDENTITY, 64, lambda _: None)
        server.publish(0, lambda: os.urandom(_PULL_BYTES))
        threading.Thread(target=_drain, args=[server.queue], daemon=True).start()
        addresses.append(address)
        servers.append(server)
    print(json.dumps({"token": token, "addresses": addresses}), flush=True)
    sys.stdin.read()
    lifecycle.exit_now(0)


def _drain(queue: Any) -> None:
    while True:
        queue.dequeue()


def measure(seconds: float) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the seconds of each kind of call, by kind and way: the fastest tenth, the median."""
    lifecycle.load_tensorflow(1, 1)
    import numpy as np  # noqa: PLC0415

    from impala_mm.transport.client import Client  # noqa: PLC0415
    from impala_mm.transport.messages import Reply  # noqa: PLC0415

    learner = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert learner.stdout
    given = json.loads(learner.stdout.readline())
    plain, secure = given["addresses"]
    clients = {
        "plain": Client(plain, given["token"].partition("\n")[0]),
        "tls": Client(secure, given["token"], from_outside=True),
        "socket": Client(secure, given["token"]),
    }
    headers, nothing = {}, np.zeros([0, 3], np.float32)
    for number, (way, client) in enumerate(clients.items()):
        me = {"actor": number, "incarnation": 1, "level": "catch"}
        client.hello(_IDENTITY | me)
        headers[way] = client.header(number, incarnation=1)

    def send(size: int) -> Callable[[str], None]:
        content = os.urandom(size)

        def once(way: str) -> None:
            reply = clients[way].enqueue(headers[way], [content], nothing)
            assert reply == Reply.ACCEPTED
            headers[way] = headers[way]._replace(number=headers[way].number + 1)

        return once

    def pull(way: str) -> None:
        assert clients[way].get_parameters()

    kinds = {
        "a call of 200 bytes": (send(200), 0.0),
        "a call of 200 bytes after 10 ms of rest": (send(200), 0.01),
        "a call of 600 kB": (send(600_000), 0.0),
        "a pull of 6.8 MB": (pull, 0.0),
    }
    found = {}
    for kind, (call, rest) in kinds.items():
        for way in _WAYS:  # the first calls trace graphs and open connections
            call(way)
        times: dict[str, list[float]] = {way: [] for way in _WAYS}
        until = time.monotonic() + seconds / len(kinds)
        while time.monotonic() < until:
            for way in _WAYS:
                time.sleep(rest)
                since = time.perf_counter()
                call(way)
                times[way].append(time.perf_counter() - since)
        tenths = {way: statistics.quantiles(times[way], n=10) for way in _WAYS}
        found[kind] = {way: (tenths[way][0], tenths[way][4]) for way in _WAYS}
    assert learner.stdin
    learner.stdin.close()
    learner.wait()
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--save", help="file for the seconds")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    found = measure(options.seconds)
    for number, what in enumerate(("fastest tenth", "median")):
        print(f"\n{what:40} {'plain':>9} {'TLS':>9} {'socket':>9}   TLS / plain   added by TLS")
        for kind, by_way in found.items():
            values = {way: by_way[way][number] for way in _WAYS}
            plain, secure = values["plain"], values["tls"]
            microseconds = "".join(f"{1e6 * values[way]:7.0f} us" for way in _WAYS)
            print(f"{kind:40}{microseconds}{secure / plain:14.2f}{1e6 * (secure - plain):12.0f} us")
    if options.save:
        Path(options.save).write_text(json.dumps(found, indent=1) + "\n")
    lifecycle.exit_now(0)


if __name__ == "__main__":
    main()
