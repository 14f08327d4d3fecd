"""Which addresses are this machine's own."""

import functools
import socket
from collections.abc import Sequence

from launcher.workers import Worker


class Elsewhere(Exception):
    """A row is of another host; says which."""


def check(workers: Sequence[Worker]) -> None:
    """Raises Elsewhere: processes are started on this machine alone so far."""
    for worker in workers:
        if not is_here(worker.ip):
            raise Elsewhere(
                f"row {worker.line}: {worker.ip} is another host, and processes are started on "
                f"this one alone so far; --dry_run prints what to run there"
            )


@functools.cache
def is_here(host: str) -> bool:
    """Whether a row's host is this machine: one of its addresses can be listened on."""
    if host in {"localhost", socket.gethostname()}:
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:  # nobody knows it; whoever connects to it will say so
        return False
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False
