"""Connections of a stranger to a port, many a second: ADDRESS PER_SECOND SECONDS."""

import collections
import contextlib
import random
import socket
import sys
import time

from hostile_message import hostile_message

address, per_second, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
host, port = address.split(":")
sent = [random.Random(1).randbytes(200), b"\x16\x03\x01\x02\x00\x01\x00", hostile_message(), b""]
kept, made = collections.deque(), 0
begun = time.monotonic()
while (now := time.monotonic() - begun) < seconds:
    if made > now * per_second:
        time.sleep(0.001)
        continue
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex((host, int(port)))
    with contextlib.suppress(OSError):
        connection.send(sent[made % len(sent)])
    made += 1
    kept.append(connection)
    if len(kept) > 800:
        kept.popleft().close()
print(made)  # connections
