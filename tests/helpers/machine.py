"""A simulated host before it runs: a description, a disk and its first script; `host` runs it."""

import ctypes
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from processes import ROOT

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
