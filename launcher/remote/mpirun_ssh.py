"""Connects mpirun to the hosts of other learners: mpirun calls this program instead of ssh.

    python -m launcher.remote.mpirun_ssh FOLDER HOST COMMAND...

The learners' supervisor provides the credentials in FOLDER (see `keyring`): those by which the
frontend itself logged in, with the host key that it verified. If the supervisor has none, because
it was restarted without a frontend, this machine's own SSH keys are used.
"""

import os
import sys
from pathlib import Path

from launcher.node import keyring
from launcher.ssh import connection

_CHUNK = 1 << 15


def main(folder: str, host: str, *command: str) -> int:
    """Run a command on a host, print its output, and return its exit code; 255 if it failed."""
    try:
        answer = keyring.request_credential(Path(folder), host)
    except (OSError, ValueError) as error:
        print(
            f"error: {host}: the learners' supervisor did not provide its credentials ({error}); "
            f"restart the run",
            file=sys.stderr,
        )
        return 255
    # Open MPI may be installed in another folder on that host.
    local_prefix, remote_prefix = answer.pop("prefixes", ("", ""))
    line = " ".join(command)
    # mpirun's daemon on that host checks that its agent exists, though it never runs it.
    line = line.replace(f"{folder}/agent", "/bin/sh")
    if local_prefix != remote_prefix and local_prefix not in ("", "/usr", "/usr/local"):
        line = line.replace(local_prefix, remote_prefix)
    if mark := answer.pop("mark", ""):  # by which remaining processes can be found and ended
        line = f"export {mark}; {line}"
    credential = connection.Credential(**answer) if answer else None
    if credential is None:
        os.execvp("ssh", ["ssh", "-o", "BatchMode=yes", host, line])
    try:
        client = connection.connect_with_credential(credential)
    except connection.Unreachable as error:
        print(f"error: {error}", file=sys.stderr)
        return 255
    transport = client.get_transport()
    assert transport
    channel = transport.open_session(timeout=30)
    channel.set_combine_stderr(True)
    channel.exec_command(line)
    channel.shutdown_write()
    while piece := channel.recv(_CHUNK):
        os.write(1, piece)
    code = channel.recv_exit_status()
    client.close()
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
