"""One simulated host on this machine: Linux namespaces, a disk and a real sshd.

It has its own network, host name, processes, /tmp, /run, /dev/shm, homes, logs, accounts and SSH
keys. Everything else is this machine's: /usr, and the project at the same path, read-only. The
host's first process exits as soon as the test's end of a pipe closes, and all processes of the host
exit with it, so a test never leaves any behind. `hosts` connects several hosts.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deadlines import Deadline
from machine import PROGRAMS, Machine, mac, network
from processes import Process, finish

from launcher.supervise.procfs import descendants

_LOGIN = {
    "PATH": PROGRAMS,
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
}
_UMASK = 0o022  # independent of the test's umask: sshd rejects folders that others can write
_FRESH = ("env", "--default-signal")  # a background job of a shell would ignore Ctrl-C
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
_SECONDS = 20.0  # timeout of each step of a boot


class Entered(subprocess.Popen):
    """A program inside a host; signals go to it, not to the nsenter that waits for it outside."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program itself, once it has started."""
        deadline = Deadline(_SECONDS)
        while self.poll() is None:
            for child in descendants(self.pid)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, sig)
                return
            assert not deadline.is_over(), f"{self.args} never started"
            time.sleep(0.01)


class Inside(Process):
    """A process on a host that keeps running while the test watches its output."""

    def __init__(self, host: "Host", *command: str, **env: str):
        self._host = host
        super().__init__(*command, **env)

    def begun(self, command: Sequence[str], env: dict[str, str], **how) -> subprocess.Popen:
        """Start the process inside the host."""
        return Entered(self._host.entering(command), env=_LOGIN | env, umask=_UMASK, **how)


class Host:
    """A host that runs from `boot` to `kill_all`; its disk persists."""

    def __init__(self, machine: Machine, root: Path, switch: Callable[..., None]):
        self.machine, self.root = machine, root
        self.name, self.port, self.username = machine.name, machine.port, machine.username
        self.password = machine.password
        self.address = machine.address
        self._switch = switch  # runs lines of `ip` in the namespace of the cables' other ends
        self._init: subprocess.Popen | None = None
        self._handle = -1  # a pidfd of the first process: its pid could be reused
        self._pid = 0  # pid of its first process in this machine's namespace
        self._own: set[int] = set()

    def __repr__(self) -> str:
        return f"{self.name} ({self.address})"

    @property
    def home(self) -> Path:
        """The home of its user, as the test sees it."""
        return self.path(f"/home/{self.username}" if self.username != "root" else "/root")

    @property
    def up(self) -> bool:
        """Whether the host runs."""
        return self._init is not None

    def path(self, inside: str | Path) -> Path:
        """Return the path of a file on its disk, as the test sees it; no other file is visible."""
        return self.root / str(inside).lstrip("/")

    def begin(self) -> None:
        """Start the first half of a boot: the host exists, without any network."""
        assert self._init is None, f"{self.name} is up"
        with self.path("/var/log/init.log").open("w") as log:
            self._init = subprocess.Popen(
                [*_FRESH, "unshare", *NAMESPACES, "--fork", "sh", self.root / "init"],
                cwd=self.root,
                env=_LOGIN,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                umask=_UMASK,
                start_new_session=True,  # a terminal's Ctrl-C reaches only the test
            )

    def connect(self) -> None:
        """Connect the cables."""
        self._pid = int(self._hear())
        self._handle = os.pidfd_open(self._pid)
        lines = []
        for port, nic, address in self._cables():
            peer = f"peer name {nic} address {mac(address)} netns {self._pid}"
            lines += [f"link add {port} type veth {peer}", f"link set {port} up"]
        self._switch(*lines, *self._plugs())

    def finish(self) -> None:
        """Finish the boot: the host gets its addresses, and its sshd listens."""
        assert self._init
        assert self._init.stdin
        self._init.stdin.write(b"go\n")
        self._init.stdin.flush()
        self._hear()
        self._own = self._pids()

    def boot(self) -> None:
        """Boot again after `kill_all` with the same disk; not even /tmp was cleaned."""
        self.begin()
        self.connect()
        self.finish()

    def kill_all(self) -> None:
        """Cut the power: no other host receives anything, not even the end of a connection."""
        self.cut()
        self.end()
        for port, _, _ in self._cables():
            # Without a check, because the kernel may delete it at the same time.
            self._switch(f"link delete {port}", check=False)

    def end(self) -> None:
        """Kill all its processes for good, even if it is only half booted."""
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            # This returns when the last of them has exited.
            select.select([self._handle], [], [], _SECONDS)
            os.close(self._handle)
            self._handle = -1
        if self._init:
            self._init.communicate(timeout=_SECONDS)  # closes its input, so that its init exits
            self._init = None

    def cut(self) -> None:
        """Cut the cables: everything sent and received is lost silently from now on."""
        self._switch(*(f"link set {port} nomaster" for port, _, _ in self._cables()))

    def restore(self) -> None:
        """Reconnect the cables after `cut`."""
        self._switch(*self._plugs())

    def lose_packets_to(self, other: "Host", lost: bool = True) -> None:
        """Lose what this host sends to another one silently, but not what that one sends."""
        nic, to = next(iter(self.machine.nics)), mac("0.0.0.0" if lost else other.address)
        self.run(*f"ip neigh replace {other.address} lladdr {to} dev {nic} nud permanent".split())

    def entering(self, command: Sequence[object]) -> list[str]:
        """Return the command that runs `command` inside, as root, in root's home."""
        flags = [f"--target={self._pid}", *NAMESPACES]
        return ["nsenter", *flags, *_FRESH, "--chdir=/root", *map(str, command)]

    def run(
        self,
        *command: object,
        check: bool = True,
        env: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess:
        """Run a command to its end within the timeout, with a fresh login's environment."""
        process = subprocess.Popen(
            self.entering(command),
            env=_LOGIN | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=_UMASK,
            start_new_session=True,
        )
        out, errors = finish(process, timeout)  # nsenter's child is in the same group
        ran = subprocess.CompletedProcess(command, process.returncode, out, errors)
        assert not check or not ran.returncode, (
            f"{command} on {self.name} exited with code {ran.returncode}:\n{out}{errors}"
        )
        return ran

    def start(self, *command: object, **env: str) -> Inside:
        """Start a process that keeps running, at most until the end of the test."""
        return Inside(self, *map(str, command), **env)

    def processes(self) -> list[str]:
        """Return the command lines of all processes on the host, except its init and its sshd."""
        return list(self._commands().values())

    def pids(self, words: str) -> list[int]:
        """Return the pids, in this machine's namespace, of the processes with these words."""
        return [pid for pid, command in self._commands().items() if words in command]

    def _commands(self) -> dict[int, str]:
        found = {}
        for pid in sorted(self._pids() - self._own):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if line:  # zombies have none
                found[pid] = line.decode(errors="replace").rstrip("\0").replace("\0", " ")
        return found

    def bytes_received(self) -> int:
        """Return the bytes received since the boot on all interfaces except the loopback."""
        return self._counted(0)

    def bytes_sent(self) -> int:
        """Return the bytes sent since the boot on all interfaces except the loopback."""
        return self._counted(8)

    def _counted(self, column: int) -> int:
        rows = Path(f"/proc/{self._pid}/net/dev").read_text().splitlines()[2:]
        counters = {
            name.strip(): line.split() for name, _, line in (r.partition(":") for r in rows)
        }
        return sum(int(counters[nic][column]) for nic in self.machine.nics)

    def _plugs(self) -> list[str]:
        return [f"link set {port} master {network(where)}" for port, _, where in self._cables()]

    def _cables(self) -> list[tuple[str, str, str]]:
        """Return (name of the other end, interface, address) of each cable."""
        nics = self.machine.nics.items()
        return [(f"{self.name}.{i}", nic, address) for i, (nic, address) in enumerate(nics)]

    def _pids(self) -> set[int]:
        ours = os.readlink(f"/proc/{self._pid}/ns/pid")
        found = set()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == ours:
                    found.add(int(entry.name))
            except OSError:  # it has just exited
                continue
        return found

    def _hear(self) -> str:
        assert self._init
        assert self._init.stdout
        deadline, line = Deadline(_SECONDS), b""
        while not deadline.is_over():
            if select.select([self._init.stdout], [], [], 0.2)[0]:
                line = os.read(self._init.stdout.fileno(), 100)
                break
        said = self.path("/var/log/init.log").read_text()
        assert line, f"{self.name} does not boot; its init printed: {said}"
        return line.decode()
