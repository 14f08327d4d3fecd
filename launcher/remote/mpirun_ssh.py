"""How mpirun reaches the hosts of other learners: it calls this as it would call ssh.

    python -m launcher.remote.mpirun_ssh FOLDER HOST COMMAND...

Credentials come from the supervisor of the learners, in FOLDER (`keyring`): those by which the
frontend itself got in, with the host key that it verified. Once the supervisor was started anew
without a frontend, this machine's own keys have to do.
"""

import os
import sys
from pathlib import Path

from launcher.node import keyring
from launcher.ssh import connection

_CHUNK = 1 << 15


def main(folder: str, host: str, *command: str) -> int:
    """The command's exit code there."""
    try:
        answer = keyring.request_credential(Path(folder), host)
    except (OSError, ValueError) as error:
        print(f"error: {host}: nobody here knows its credentials ({error})", file=sys.stderr)
        return 255
    # Its Open MPI may lie elsewhere than ours.
    local_prefix, remote_prefix = answer.pop("prefixes", ("", ""))
    line = " ".join(command)
    # mpirun's daemon there looks for an agent, too, though it never needs one.
    line = line.replace(f"{folder}/agent", "/bin/sh")
    if local_prefix != remote_prefix and local_prefix not in ("", "/usr", "/usr/local"):
        line = line.replace(local_prefix, remote_prefix)
    if mark := answer.pop("mark", ""):  # what is left of it can be found
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
