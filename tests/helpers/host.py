"""One host of a test's own on this machine: Linux namespaces, a disk, and a real sshd.

It has a network, a host name, processes, /tmp, /run, /dev/shm, homes, logs, accounts and SSH keys
of its own. All else is this machine's: /usr, and the project at the same path, which it may only
read. Its first process ends as soon as the test's end of a pipe closes, and everything in the
host ends with it, so nothing is left behind whatever becomes of the test. `hosts` connects several.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from machine import PROGRAMS, Machine, mac, network
from processes import Process

from launcher.node.procfs import descendants

_LOGIN = {
    "PATH": PROGRAMS,
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
}
_UMASK = 0o022  # ours, whatever the test's is: sshd refuses folders that more may write
_FRESH = ("env", "--default-signal")  # a test in the background of a shell ignores Ctrl-C
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
_SECONDS = 20.0  # for each step of a boot


class Entered(subprocess.Popen):
    """A program inside; nsenter, which waits for it outside, is not to get its signals."""

    def send_signal(self, sig: int) -> None:
        """To the program itself, once it is there."""
        deadline = time.monotonic() + _SECONDS
        while self.poll() is None:
            for child in descendants(self.pid)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, sig)
                return
            assert time.monotonic() < deadline, f"{self.args} never began"
            time.sleep(0.01)


class Inside(Process):
    """A process on a host that goes on while the test watches what it prints."""

    def __init__(self, host: "Host", *command: str, **env: str):
        self._host = host
        super().__init__(*command, **env)

    def begun(self, command: Sequence[str], env: dict[str, str], **how) -> subprocess.Popen:
        """Where its host is."""
        return Entered(self._host.entering(command), env=_LOGIN | env, umask=_UMASK, **how)


class Host:
    """Runs from `boot` to `kill_all`; its disk stays."""

    def __init__(self, machine: Machine, root: Path, switch: Callable[..., None]):
        self.machine, self.root = machine, root
        self.name, self.port, self.username = machine.name, machine.port, machine.username
        self.password = machine.password
        self.address = machine.address
        self._switch = switch  # carries out lines of `ip` where the cables' other ends are
        self._init: subprocess.Popen | None = None
        self._handle = -1  # a file descriptor: a number may be another process's one day
        self._pid = 0  # of its first process, as this machine counts
        self._own: set[int] = set()

    def __repr__(self) -> str:
        return f"{self.name} ({self.address})"

    @property
    def home(self) -> Path:
        """Its user's home, as the test sees it."""
        return self.path(f"/home/{self.username}" if self.username != "root" else "/root")

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self._init is not None

    def path(self, inside: str | Path) -> Path:
        """A file of its disk, as the test sees it; nothing else of it can be seen from outside."""
        return self.root / str(inside).lstrip("/")

    def begin(self) -> None:
        """The first half of a boot: it is there, without any network."""
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
                start_new_session=True,  # a terminal's Ctrl-C is for the test
            )

    def connect(self) -> None:
        """The cables."""
        self._pid = int(self._hear())
        self._handle = os.pidfd_open(self._pid)
        lines = []
        for port, nic, address in self._cables():
            peer = f"peer name {nic} address {mac(address)} netns {self._pid}"
            lines += [f"link add {port} type veth {peer}", f"link set {port} up"]
        self._switch(*lines, *self._plugs())

    def finish(self) -> None:
        """The second half: it has its addresses, and its sshd listens."""
        assert self._init
        assert self._init.stdin
        self._init.stdin.write(b"go\n")
        self._init.stdin.flush()
        self._hear()
        self._own = self._pids()

    def boot(self) -> None:
        """After `kill_all`, with the same disk; not even /tmp was cleaned."""
        self.begin()
        self.connect()
        self.finish()

    def kill_all(self) -> None:
        """As a power cut: nobody hears of it, not even by a connection that closes."""
        self.cut()
        self.end()
        for port, _, _ in self._cables():
            self._switch(f"link delete {port}", check=False)  # it may be going by itself

    def end(self) -> None:
        """All its processes, for good; even of one that is half booted."""
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            select.select([self._handle], [], [], _SECONDS)  # the last of them is gone then
            os.close(self._handle)
            self._handle = -1
        if self._init:
            self._init.communicate(timeout=_SECONDS)  # its input closes, which ends its init
            self._init = None

    def cut(self) -> None:
        """Whatever it sends, and is sent, is lost from now on without a word."""
        self._switch(*(f"link set {port} nomaster" for port, _, _ in self._cables()))

    def restore(self) -> None:
        """After `cut`."""
        self._switch(*self._plugs())

    def entering(self, command: Sequence[object]) -> list[str]:
        """What runs a command inside, as root, in root's home."""
        flags = [f"--target={self._pid}", *NAMESPACES]
        return ["nsenter", *flags, *_FRESH, "--chdir=/root", *map(str, command)]

    def run(
        self,
        *command: object,
        check: bool = True,
        env: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess:
        """To its end, within the limit, with a fresh login's environment; output as text."""
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
        try:
            out, errors = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # nsenter's child is of the same group
                process.communicate(timeout=_SECONDS)
        ran = subprocess.CompletedProcess(command, process.returncode, out, errors)
        assert not check or not ran.returncode, (
            f"{command} on {self.name} ended with {ran.returncode}:\n{out}{errors}"
        )
        return ran

    def start(self, *command: object, **env: str) -> Inside:
        """One that goes on; it ends with the test at the latest."""
        return Inside(self, *map(str, command), **env)

    def processes(self) -> list[str]:
        """Command lines of all that runs there but its init and its sshd."""
        return list(self._commands().values())

    def pids(self, words: str) -> list[int]:
        """As this machine counts, of those whose command line holds these words."""
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
        """Since it was booted, by all its interfaces but the loopback."""
        return self._counted(0)

    def bytes_sent(self) -> int:
        """The same the other way."""
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
        """(the cable's other end, interface, address) of each."""
        nics = self.machine.nics.items()
        return [(f"{self.name}.{i}", nic, address) for i, (nic, address) in enumerate(nics)]

    def _pids(self) -> set[int]:
        ours = os.readlink(f"/proc/{self._pid}/ns/pid")
        found = set()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == ours:
                    found.add(int(entry.name))
            except OSError:  # it has just ended
                continue
        return found

    def _hear(self) -> str:
        assert self._init
        assert self._init.stdout
        line = b""
        if select.select([self._init.stdout], [], [], _SECONDS)[0]:
            line = os.read(self._init.stdout.fileno(), 100)
        said = self.path("/var/log/init.log").read_text()
        assert line, f"{self.name} does not boot; its init said: {said}"
        return line.decode()
