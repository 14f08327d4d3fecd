"""The archive that the frontend sends to a host first: the modules of `launcher/supervise`.

A host therefore needs only Python and an SSH server, and its supervisors always have the frontend's
version.
"""

import base64
import functools
import hashlib
import io
import shlex
import zipfile
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
SYSTEM_PYTHONS = ("python3", "python3.13", "python3.12", "python3.11", "python3.10")
_VERSION_CHECK = "import sys; sys.exit(sys.version_info < (3, 10))"
# Reads the bundle from standard input, stores it and runs `agent_main`.
_BOOTSTRAP = """
import os, sys
size, name, run = sys.stdin.buffer.readline().decode().split()
data = sys.stdin.buffer.read(int(size))
if len(data) != int(size):
    sys.exit("the connection was cut")
home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
folder = os.path.join(home, "impala_mm")
path = os.path.join(folder, "far-" + name + ".zip")
try:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if not os.path.exists(path) or os.path.getsize(path) != len(data):
        work = path + "." + os.uname().nodename + str(os.getpid())
        with open(work, "wb") as file:
            file.write(data)
        os.replace(work, path)
except OSError as error:
    sys.exit(f"{folder} cannot be written ({error.strerror}); set XDG_STATE_HOME on that host")
sys.path.insert(0, path)
from launcher.supervise import agent_main
agent_main.main(run)
"""
# The same without line breaks and `!`, which csh does not take as they are within quotes.
_ENCODED_BOOTSTRAP = (
    f'import base64; exec(base64.b64decode("{base64.b64encode(_BOOTSTRAP.encode()).decode()}"))'
)


@functools.cache
def bundle() -> bytes:
    """Return the archive, a zip file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for path in [_PACKAGE / "__init__.py", *sorted((_PACKAGE / "supervise").glob("*.py"))]:
            # A ZipInfo without a time makes equal sources equal archives, which share a file name.
            name = zipfile.ZipInfo(str(path.relative_to(_PACKAGE.parent)))
            file.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def bundle_header(run: str) -> bytes:
    """Return the line that is sent before the archive: its size, its name and the run's name."""
    name = hashlib.sha256(bundle()).hexdigest()[:16]
    return f"{len(bundle())} {name} {run}\n".encode()


def start_command(pythons: Sequence[str]) -> str:
    """Return a shell command that runs the bootstrap program by the first suitable Python.

    It works in a login shell of any kind, also in csh and fish: it is one line without `!`. The
    system's Python is tried first, as a row's may be a wrapper that does more than start Python.
    """
    tried = " ".join(shlex.quote(python) for python in (*SYSTEM_PYTHONS, *pythons))
    script = (
        f'for p in {tried}; do case "$p" in "~/"*) p="$HOME/${{p#??}}";; esac; '
        f'if "$p" -ISc "$1" >/dev/null 2>&1; then exec "$p" -ISc "$0"; fi; done; '
        f'echo "it has no Python 3.10 or newer ({", ".join(SYSTEM_PYTHONS)})"; exit 127'
    )
    return f"exec {shlex.join(['sh', '-c', script, _ENCODED_BOOTSTRAP, _VERSION_CHECK])}"
