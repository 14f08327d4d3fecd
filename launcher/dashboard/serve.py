"""Serves a dashboard on this machine's loopback address until Ctrl-C is pressed."""

import contextlib
import getpass
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from impala_mm.config import flags
from impala_mm.config.settings import Config
from launcher.dashboard.host_links import HostLinks
from launcher.dashboard.server import Server
from launcher.dashboard.site import Site
from launcher.dashboard.updates import Updates
from launcher.supervise.json_files import private

_HOST = "127.0.0.1"  # printed, too: of localhost another user might serve the other address, ::1
_FIRST_PORT, _TRIED_PORTS = 8600, 100
_TOKEN_BYTES = 16
_BACKLOG = 1000  # connections that the kernel keeps until they are accepted


def serve(config: Config, shown: str = "", frontend_flags: Sequence[str] = ()) -> NoReturn:
    """Serve until a signal ends this process.

    `shown` is the name of the run that the page shows first; `frontend_flags` are the user's, for
    the frontend's commands.
    """
    folder, token_file = config.logdir or "runs", config.dashboard_token_file
    links = HostLinks(frontend_flags)
    updates = Updates(Path(folder).absolute(), links)
    token = read_token(token_file) if token_file else secrets.token_urlsafe(_TOKEN_BYTES)
    site = Site(updates, token, config.dashboard_control, shown, frontend_flags)
    server = _listen(site, config.dashboard_port)
    updates.start()
    for line in describe(server.port, token, folder, config.dashboard_control):
        print(line, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the dashboard
            server.serve_forever()
    finally:
        links.end()
    sys.exit(0)


def describe(port: int, token: str, folder: str, has_control: bool) -> list[str]:
    """Return the lines that say how to open the page."""
    return [
        f"dashboard: http://{_HOST}:{port}/{token}/",
        f"from another machine: ssh -N -L {_HOST}:{port}:{_HOST}:{port} "
        f"{getpass.getuser()}@{socket.gethostname()}, then the same address there",
        f"shows the runs of this user's frontends and those in {folder}; "
        + ("it can save, stop and change them" if has_control else "it only reads")
        + "; Ctrl-C ends the dashboard, and no run",
    ]


def read_token(name: str) -> str:
    """Return the token in a file, which is created with a new one if it does not exist."""
    path = Path(name)
    try:
        # Two dashboards may create it at the same moment, and it is there the next time.
        with contextlib.suppress(FileExistsError), open(path, "x", opener=private) as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        token = path.read_text(errors="replace").strip()
    except OSError as error:
        flags.refuse(f"--dashboard_token_file={name}: {error.strerror}")
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,200}", token):
        flags.refuse(
            f"--dashboard_token_file={name}: it must hold 16 to 200 letters, digits, - and _, and "
            f"nothing else; without the file, the dashboard creates it"
        )
    return token


def _listen(site: Site, port: int) -> Server:
    """Return a server at the port, or at the first free one."""
    ports = [port] if port else range(_FIRST_PORT, _FIRST_PORT + _TRIED_PORTS)
    for each in ports:
        try:
            listener = socket.create_server((_HOST, each), backlog=_BACKLOG)
        except OSError as error:
            if port:
                why = os.strerror(error.errno or 0)
                flags.refuse(
                    f"--dashboard_port={port}: {why}; without the flag it takes a free port"
                )
            continue
        return Server(_HOST, each, site, listener.detach())
    flags.refuse(
        f"no port from {_FIRST_PORT} to {_FIRST_PORT + _TRIED_PORTS - 1} is free: choose one by "
        f"--dashboard_port"
    )
