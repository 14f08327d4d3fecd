"""Program that reads all packets of its host, as whoever controls a switch could.

It prints each of the texts in its arguments that it reads on the network.
"""

import socket
import sys

_EVERY_PROTOCOL = 3
_KEPT = 200  # bytes of the packet before, since a text may be in two

with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL)) as wire:
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
    print("reads the network", flush=True)
    missing, last = set(sys.argv[1:]), b""
    while True:
        packet = wire.recv(1 << 17)
        last = last[-_KEPT:] + packet
        for text in [text for text in missing if text.encode() in last]:
            missing.remove(text)
            print(f"read {text!r}", flush=True)
