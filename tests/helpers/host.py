"""One simulated host on this machine: Linux namespaces, a disk and a real sshd.

It has its own network, host name, processes, /tmp, /run, /dev/shm, homes, logs, accounts and SSH
keys. Everything else is this machine's: /usr, and the project at the same path, read-only. The
host's first process exits as soon as the test's end of a pipe closes, and all processes of the host
exit with it, so a test never leaves any behind. `hosts` connects several hosts.
"""

import contextlib
import ctypes
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from deadlines import Deadline
from processes import ROOT, Process, finish

from launcher.supervise.procfs import descendants

PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FOLDERS = ("/etc/ssh", "/home", "/root", "/tmp", "/var/log", "/var/tmp")  # on the host's own disk
# Other users may traverse root's home, because this project's Python may be in it.
_MODES = {"root": 0o711, "tmp": 0o1777, "var/tmp": 0o1777, "etc/shadow": 0o600}
_UID = 7000  # uid of a user other than root


class Machine(NamedTuple):
    """The description of a host."""

    name: str
    nics: dict[str, str]  # address by network interface; the first is the host's main address
    port: int = 22  # port of its sshd; 0: no sshd
    username: str = "root"
    password: str = ""  # password of that user; if set, keys are not accepted
    loops: bool = False  # its own name resolves to 127.0.1.1, as Debian's installer configures it

    @property
    def address(self) -> str:
        """The host's main address."""
        return next(iter(self.nics.values()))


def mac(address: str) -> str:
    """Return the MAC address of the interface with this address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def network(address: str) -> str:
    """Return the bridge of the hosts that reach each other without a router."""
    return "net" + address.split(".")[2]


def router(address: str) -> str:
    """Return the router of an address's network."""
    return address.rpartition(".")[0] + ".1"


def make_disk(
    root: Path, machine: Machine, machines: Sequence[Machine], keys: Sequence[Path]
) -> None:
    """Create the host's own files before it boots; `keys` are its sshd's."""
    for folder in _FOLDERS:
        (root / folder[1:]).mkdir(parents=True)
    if machine.username != "root":
        home = root / "home" / machine.username
        home.mkdir()
        os.chown(home, _UID, _UID)
    for key in keys:
        shutil.copy(key, root / "etc" / "ssh")
    etc = {
        "hostname": f"{machine.name}\n",
        "hosts": _names(machine, machines),
        "machine-id": os.urandom(16).hex() + "\n",
        "passwd": _accounts(machine),
        "resolv.conf": "",  # no other names can be resolved
        "shadow": _secrets(machine),
        "ssh/sshd_config": _sshd_config(machine, keys),
    }
    for name, text in etc.items():
        (root / "etc" / name).write_text(text)
    for path, mode in _MODES.items():
        (root / path).chmod(mode)


def _names(machine: Machine, machines: Sequence[Machine]) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    for each in machines:
        loops = machine.loops and each is machine
        lines.append(f"{'127.0.1.1' if loops else each.address} {each.name}")
    return "\n".join(lines) + "\n"


def _accounts(machine: Machine) -> str:
    own = {"root": "x:0:0:root:/root"}
    if machine.username != "root":
        own[machine.username] = f"x:{_UID}:{_UID}::/home/{machine.username}"
    lines = [f"{name}:{fields}:/bin/bash\n" for name, fields in own.items()]
    for line in Path("/etc/passwd").read_text().splitlines(keepends=True):
        if line.partition(":")[0] not in own:  # sshd needs its own account
            lines.append(line)
    return "".join(lines)


def _secrets(machine: Machine) -> str:
    hashes = {"root": "*"}
    if machine.password:
        hashes[machine.username] = _hashed(machine.password)
    return "".join(f"{name}:{secret}:19000:0:99999:7:::\n" for name, secret in hashes.items())


def _sshd_config(machine: Machine, keys: Sequence[Path]) -> str:
    by_password, by_key = ("yes", "no") if machine.password else ("no", "yes")
    lines = [
        *(f"Port {machine.port}", "PidFile /run/sshd.pid"),
        *(f"HostKey /etc/ssh/{key.name}" for key in keys if key.suffix != ".pub"),
        *(f"PasswordAuthentication {by_password}", f"PubkeyAuthentication {by_key}"),
        *("KbdInteractiveAuthentication no", "UsePAM no", "PermitRootLogin yes"),
        *("MaxStartups 500", "AcceptEnv LANG LC_*", "Subsystem sftp internal-sftp"),
    ]
    return "\n".join(lines) + "\n"


def _hashed(password: str) -> str:
    """Hash a password for /etc/shadow with the library that sshd uses."""
    crypt = ctypes.CDLL("libcrypt.so.1").crypt
    crypt.restype = ctypes.c_char_p
    return crypt(password.encode(), f"$6${os.urandom(8).hex()}$".encode()).decode()


def write_init(
    root: Path, machine: Machine, machines: Sequence[Machine], shared: Sequence[Path]
) -> None:
    """Write the first process: a script that runs until the test's end of its input closes."""
    lines = [
        "set -eu",
        "read -r pid rest </proc/self/stat  # the pid in this machine's namespace",
        "mount -t proc proc /proc",
        "mount -t sysfs sysfs /sys",
        "mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts /dev/pts",
        "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
        "mount -t tmpfs -o mode=0755 tmpfs /run",
        "mkdir /run/sshd",
        "cat /proc/sys/kernel/random/uuid >/run/boot_id",
        "mount --bind /run/boot_id /proc/sys/kernel/random/boot_id",
        f"echo {machine.name} >/proc/sys/kernel/hostname",
        *_mounts(root, shared),
        'echo "$pid"',
        "read -r go",
        "ip -batch - <<'END'",
        *_addresses(machine, machines),
        "END",
    ]
    if machine.port:
        lines += [
            # By its full path, because it starts itself again for every connection.
            f"{shutil.which('sshd', path=PROGRAMS)} -D -E /var/log/sshd.log >/dev/null &",
            "until [ -s /run/sshd.pid ]; do kill -0 $!; sleep 0.02; done",
        ]
    # While the shell waits for this process, it also reaps orphans.
    lines += ["exec 3<&0", "cat <&3 >/dev/null &", "waited=$!", "echo up", 'wait "$waited"']
    (root / "init").write_text("\n".join(lines) + "\n")


def _mounts(root: Path, shared: Sequence[Path]) -> list[str]:
    """Return shell lines that mount its own files over this machine's, and then shared folders."""
    lines = []
    kept = {path.resolve() for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix), *shared)}
    for path in sorted(kept):
        hidden = any(path.is_relative_to(folder) for folder in _FOLDERS)
        if not hidden and path != ROOT:
            continue
        place = path
        if hidden:
            place = root / str(path)[1:]
            place.mkdir(parents=True, exist_ok=True)
        lines.append(f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(place))}")
        if path == ROOT:
            lines.append(f"mount -o remount,bind,ro {shlex.quote(str(place))}")
    # By relative paths, because one of the mounts hides the path of this folder.
    own = "mount --no-canonicalize --rbind"
    lines += [f"{own} .{folder} {folder}" for folder in _FOLDERS]
    lines.append("for file in hosts hostname machine-id passwd resolv.conf shadow; do")
    lines.append(f"  [ ! -e /etc/$file ] || {own} ./etc/$file /etc/$file")
    return [*lines, "done", "cd /"]


def _addresses(machine: Machine, machines: Sequence[Machine]) -> list[str]:
    """Return lines of `ip` that set its addresses and its route to other networks."""
    lines = ["link set lo up"]
    for nic, address in machine.nics.items():
        lines += [f"link set {nic} up", f"address add {address}/24 dev {nic}"]
        for other in machines:
            for far in other.nics.values():
                # Without these, ARP would report a missing host after 3 s. `replace`, because a
                # packet from a host that runs may have made an entry since the link is up.
                if other is not machine and network(far) == network(address):
                    lines.append(f"neigh replace {far} lladdr {mac(far)} dev {nic} nud permanent")
    return [*lines, f"route add default via {router(machine.address)}"]


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
