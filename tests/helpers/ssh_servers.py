"""SSH servers for tests: a real sshd, a configurable one, and faulty ones."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import paramiko
from deadlines import Deadline
from processes import free_port

from launcher.supervise import procfs

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Sshd:
    """A real sshd on a port of the loopback interface."""

    def __init__(self, folder, *options, kinds=("ed25519",), port=0):
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd changes its root to this folder
        folder.mkdir()
        self.port, self.keys = (
            port or free_port(),
            {kind: key(folder / f"host_{kind}", kind) for kind in kinds},
        )
        self.authorized = folder / "authorized_keys"
        self.authorized.touch(0o600)
        self._log = folder / "log"
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "PermitRootLogin yes",
            f"AuthorizedKeysFile {self.authorized}",
            *(f"HostKey {path}" for path in self.keys.values()),
            *options,
        ]
        (folder / "config").write_text("\n".join(lines) + "\n")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", folder / "config"], stderr=log, stdin=subprocess.DEVNULL
            )
        _until_listens(self.port, self.process, self._log)

    def lets_in(self, *paths):
        """Authorise the owners of these private keys."""
        self.authorized.write_text("".join(Path(f"{path}.pub").read_text() for path in paths))

    def listed(self, kind="ed25519"):
        """Return its key in the format of known_hosts, without a name."""
        return " ".join(Path(f"{self.keys[kind]}.pub").read_text().split()[:2])

    def known(self, kind="ed25519", name=""):
        """Return its line for known_hosts."""
        return f"{name or f'[127.0.0.1]:{self.port}'} {self.listed(kind)}\n"

    def log(self):
        """Return the complete log."""
        return self._log.read_text()

    def end(self):
        """Stop it after its connections have ended, because no other process reaps them."""
        until = time.monotonic() + 3
        while procfs.descendants(self.process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        self.process.terminate()
        self.process.wait()


def key(path, kind="ed25519", passphrase=""):
    """Create a private key at `path` with its public key at PATH.pub, and return `path`."""
    bits = ("-b", "1024") if kind == "rsa" else ()
    command = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", path]
    subprocess.run(command, check=True)
    return path


class Obedient(paramiko.ServerInterface):
    """A server that accepts the given credentials and records all attempts in `tried`."""

    def __init__(
        self, password="", methods="publickey,password", keys=(), most=99, prompts=1, port=0
    ):
        self.password, self.methods, self.most = password, methods, most
        self.keys = {" ".join(Path(f"{path}.pub").read_text().split()[1:2]) for path in keys}
        self.prompts = prompts
        self.tried = []
        self.host_key = paramiko.ECDSAKey.generate()
        self._transports = []
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def known(self):
        """Return its line for known_hosts."""
        return f"[127.0.0.1]:{self.port} {self.host_key.get_name()} {self.host_key.get_base64()}\n"

    def get_allowed_auths(self, username):
        return self.methods

    def check_auth_password(self, username, password):
        return self._judge(password, password == self.password)

    def check_auth_publickey(self, username, key):
        return self._judge("a key", key.get_base64() in self.keys)

    def check_auth_interactive(self, username, submethods):
        if "keyboard-interactive" not in self.methods:
            return paramiko.AUTH_FAILED
        return paramiko.InteractiveQuery("", "", *[f"Question {i}: " for i in range(self.prompts)])

    def check_auth_interactive_response(self, responses):
        return self._judge(*responses[:1], responses == [self.password])

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def end(self):
        """Close it and all its connections."""
        self._socket.close()
        for transport in self._transports:
            transport.close()

    def _judge(self, what, good):
        self.tried.append(what)
        return paramiko.AUTH_SUCCESSFUL if good else self._no()

    def _no(self):
        self._left -= 1
        if self._left <= 0:
            self._transports[-1].sock.close()  # like sshd after MaxAuthTries
        return paramiko.AUTH_FAILED

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                transport = paramiko.Transport(connection)
                transport.add_server_key(self.host_key)
                self._transports.append(transport)
                self._left = self.most
                with contextlib.suppress(paramiko.SSHException, EOFError):
                    transport.start_server(event=threading.Event(), server=self)


@contextlib.contextmanager
def saying(words, then_close=False):
    """Yield the port of a server that accepts connections, sends these bytes, and then nothing."""
    held = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.sendall(words)
                if then_close:
                    connection.close()
                held.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


@contextlib.contextmanager
def agent(folder, *paths):
    """Yield the socket of a real ssh-agent with these keys."""
    address = folder / "agent.sock"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", address], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    try:
        _until(lambda: _answers(socket.AF_UNIX, str(address)), process)
        environment = os.environ | {"SSH_AUTH_SOCK": str(address)}
        subprocess.run(["ssh-add", "-q", *paths], env=environment, check=True)
        yield address
    finally:
        process.terminate()
        process.wait()


def _until_listens(port, process, log):
    _until(lambda: _answers(socket.AF_INET, ("127.0.0.1", port)), process, log)


def _answers(family, address):
    """Return whether a server listens; its socket's file is there earlier than that."""
    with socket.socket(family) as probe:
        return probe.connect_ex(address) == 0


def _until(good, process, log=None):
    deadline = Deadline(10)
    while not good():
        said = log.read_text() if log else ""
        assert process.poll() is None, f"it exited: {said}"
        assert not deadline.is_over(), said
        time.sleep(0.01)
