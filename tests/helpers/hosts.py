"""Several simulated hosts on this machine, in two networks, for tests of clusters over SSH.

    laptop   jump   learner1   learner2   actor1   actor2          actor3
       |    .3|  |      |          |         |        |              |
    ---+------+--|------+----------+---------+--------+--- 10.77.1   |
                 +-------------------------------- 10.77.2 ----------+

The router between the networks has no route to the laptop, so the laptop reaches actor3 only
through jump. Packets that it sends directly are dropped without an answer, as by a firewall, and
so are packets to an address that does not exist.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from host import NAMESPACES, PROGRAMS, Host, Machine, make_disk, network, router, write_init

from impala_mm.runtime import run_token

MACHINES = (
    Machine("laptop", {"wlan0": "10.77.1.2"}, port=0),
    Machine("jump", {"eth0": "10.77.1.3", "eth1": "10.77.2.3"}),
    Machine("learner1", {"eth0": "10.77.1.11"}),
    Machine("learner2", {"ens5": "10.77.1.12"}, loops=True),
    Machine("actor1", {"enp3s0": "10.77.1.21"}),
    Machine(
        *("actor2", {"eth0": "10.77.1.22"}, 2222),
        username="trainer",
        password='don\'t "tell" anybody',
    ),
    Machine("actor3", {"eno1": "10.77.2.23"}),
)
_NEEDED = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "tmux": "tmux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
_PROBE = """
mount -t proc proc /proc && mount -t tmpfs tmpfs /run && ip -batch - <<END
link add probe0 type bridge
link add probe1 type veth peer name probe2
END
"""
_PATH = {"PATH": PROGRAMS}
_PREFIX = "impala-lan-"
_SECONDS = 20.0
_YOUNG = 60.0  # seconds within which a new folder may not be locked yet


@functools.cache
def why_not() -> str:
    """Return why simulated hosts are impossible on this machine; an empty string if they work."""
    if os.geteuid():
        return "namespaces with a network need root"
    missing = {d for p, d in _NEEDED.items() if not shutil.which(p, path=PROGRAMS)}
    if missing:
        return f"not installed: {', '.join(sorted(missing))}"
    ran = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "sh", "-c", _PROBE],
        env=_PATH,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    return f"namespaces are unavailable: {ran.stderr.strip()}" if ran.returncode else ""


class Lan:
    """All hosts, booted; `close` ends them. Several of these may exist at the same time.

    `shared` folders of this machine are the same on all hosts, as on a network file system; by
    default only the project is.
    """

    key = "/root/.ssh/cluster_key"  # on the laptop; valid on all hosts except actor2
    ssh_config = "/root/.ssh/config"
    known_hosts = "/root/.ssh/known_hosts"

    def __init__(self, shared: Sequence[Path] = ()):
        self.hosts: dict[str, Host] = {}
        self._switch: Switch | None = None
        _remove_leftovers()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._owned = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(self._owned, fcntl.LOCK_EX)
        # ssh rejects files that others can write, which the test's umask may allow.
        umask = os.umask(0o022)
        try:
            self._set_up(shared)
        except BaseException:
            self.close()
            raise
        finally:
            os.umask(umask)
        self.laptop, self.jump = self.hosts["laptop"], self.hosts["jump"]
        self.learner1, self.learner2 = self.hosts["learner1"], self.hosts["learner2"]
        self.actor1, self.actor2 = self.hosts["actor1"], self.hosts["actor2"]
        self.actor3 = self.hosts["actor3"]

    def __enter__(self) -> "Lan":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything, however far the set-up came."""
        for host in self.hosts.values():
            with contextlib.suppress(Exception):
                host.end()
        if self._switch:
            self._switch.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._owned)

    def trust(self, host: Host) -> None:
        """Give another host the laptop's SSH configuration and keys, for its root."""
        for file in self.laptop.path("/root/.ssh").iterdir():
            shutil.copy(file, host.path("/root/.ssh"))

    def _set_up(self, shared: Sequence[Path]) -> None:
        keys = _keys(self._folder / "keys")
        for machine in MACHINES:
            root = self._folder / machine.name
            make_disk(root, machine, MACHINES, keys[machine.name] if machine.port else ())
            write_init(root, machine, MACHINES, shared)
            self.hosts[machine.name] = Host(machine, root, self._ip)
        self._introduce(keys)
        for host in self.hosts.values():
            host.begin()
        addresses = [address for each in MACHINES for address in each.nics.values()]
        self._switch = Switch(addresses, unrouted=self.hosts["laptop"].address)
        for host in self.hosts.values():
            host.connect()
        for host in self.hosts.values():
            host.finish()

    def _introduce(self, keys: dict[str, list[Path]]) -> None:
        """Write the laptop's SSH configuration, keys and known hosts."""
        private, public = keys["laptop"]
        known = ""
        config = f"Host *\n  IdentityFile {self.key}\n"
        for host in self.hosts.values():
            ssh = host.path("/root/.ssh")
            ssh.mkdir(mode=0o700)
            if not host.port:
                continue
            if not host.password:
                shutil.copy(public, ssh / "authorized_keys")
            for name in (host.name, host.address):
                at = name if host.port == 22 else f"[{name}]:{host.port}"
                for key in keys[host.name]:
                    known += f"{at} {key.read_text()}" if key.suffix == ".pub" else ""
            config += f"Host {host.name} {host.address}\n  HostName {host.address}\n"
            config += f"  Port {host.port}\n  User {host.username}\n"
            if network(host.address) != network(self.hosts["laptop"].address):
                config += "  ProxyJump jump\n"
        laptop = self.hosts["laptop"]
        shutil.copy(private, laptop.path(self.key))
        laptop.path(self.ssh_config).write_text(config)
        laptop.path(self.known_hosts).write_text(known)

    def _ip(self, *lines: str, check: bool = True) -> None:
        assert self._switch
        self._switch.ip(*lines, check=check)


class Switch:
    """The bridges and the router between them: a network namespace without a host."""

    def __init__(self, addresses: Sequence[str], unrouted: str = ""):
        """Connect the networks of these addresses; the router has no route to `unrouted`."""
        forward = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo up; exec cat >/dev/null"
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", forward],
            env=_PATH,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == b"up\n"
        lines = ["link set lo up", "route add blackhole default"]
        lines += [f"route add blackhole {unrouted}"] if unrouted else []
        for address in {network(address): address for address in addresses}.values():
            bridge = network(address)
            lines += [f"link add {bridge} type bridge", f"link set {bridge} up"]
            lines.append(f"address add {router(address)}/24 dev {bridge}")
        self.ip(*lines)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def ip(self, *lines: str, check: bool = True) -> None:
        """Run lines of `ip`."""
        ran = subprocess.run(
            ["nsenter", f"--target={self._process.pid}", "--net", "ip", "-batch", "-"],
            input="\n".join(lines) + "\n",
            env=_PATH,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert not check or not ran.returncode, f"{lines}: {ran.stderr}"


def give_token(*hosts: Host) -> str:
    """Write a token file of a new run to these hosts, as a user would copy it; return it."""
    content = run_token.make()
    for host in hosts:
        token = host.home / ".config" / "impala_mm" / "token"
        token.parent.mkdir(parents=True, exist_ok=True)
        token.write_text(content)
        token.chmod(0o600)
    return content


def _keys(folder: Path) -> dict[str, list[Path]]:
    """Create private and public keys: two kinds for each host, one for the laptop's user."""
    making, found = [], {}
    for machine in MACHINES:
        kinds = ("ed25519", "ecdsa") if machine.port else ("ed25519",)
        made = [folder / machine.name / f"ssh_host_{kind}_key" for kind in kinds]
        (folder / machine.name).mkdir(parents=True)
        for kind, path in zip(kinds, made, strict=True):
            command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", machine.name, "-f", path]
            making.append(subprocess.Popen(command, env=_PATH))
        found[machine.name] = [each for key in made for each in (key, Path(f"{key}.pub"))]
    assert [each.wait(_SECONDS) for each in making] == [0] * len(making)
    return found


def _remove_leftovers() -> None:
    """Remove disks of tests that were killed; a lock marks those in use."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - folder.stat().st_mtime > _YOUNG:
                    shutil.rmtree(folder)
            finally:
                os.close(handle)
