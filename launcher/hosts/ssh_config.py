"""The route to a host, from its row of the CSV and then from the user's SSH configuration.

OpenSSH itself reads the configuration (`ssh -G`), so that Include, Match and every alias mean what
they mean to `ssh`. This module connects to no host.
"""

import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.plan.settings import SshSettings
from launcher.supervise.errors import LauncherError

_SECONDS = 10.0  # for a TCP connection if ConnectTimeout is not set, and for `ssh -G`
_CONFIG_FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
# OpenSSH's own, for a machine that has neither `ssh` nor a configuration.
_DEFAULTS = {
    "identityfile": ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"],
    "userknownhostsfile": ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"],
}
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_HIDDEN = "***"
_MAX_JUMPS = 8

ConfigValues = dict[str, list[str]]  # the values for one host, by lower-case keyword


class HostUnavailable(LauncherError):
    """A host cannot be reached; the message names it, the cause and the remedy in one sentence."""


class Target(NamedTuple):
    """The SSH columns of a row of the CSV; empty or 0: not given."""

    ip: str  # or a name, or an alias of the configuration
    ssh_port: int = 0
    ssh_username: str = ""
    ssh_password: str = ""
    ssh_key_path: str = ""

    def __repr__(self) -> str:
        shown = self._replace(ssh_password=_HIDDEN) if self.ssh_password else self
        return f"Target{tuple(shown)}"


class Route(NamedTuple):
    """The route to a host, complete."""

    host: str  # as the CSV calls it
    address: str
    port: int
    username: str
    key_path: str = ""  # of the CSV
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str = ""  # socket of the SSH agent; empty: none
    jump: "Route | None" = None  # to the host through which it is reached
    hop: str = ""  # that host as ProxyJump calls it, [user@]host[:port]
    proxy_command: str = ""
    known_hosts: tuple[str, ...] = ()  # files; new keys are written to the first
    global_known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    hash_known_hosts: bool = False
    accept_new: bool = False  # trust on first use
    accept_keys: tuple[str, ...] = ()  # fingerprints of keys to trust on first use
    connect_timeout: float = _SECONDS
    family: socket.AddressFamily = socket.AF_UNSPEC

    @property
    def display_name(self) -> str:
        """The host's name in messages."""
        at = f"{self.address}:{self.port}"
        return self.host if at == f"{self.host}:22" else f"{self.host} ({at})"


def find_route(
    target: Target,
    settings: SshSettings,
    hops: Sequence[str] = (),
    passed_hops: tuple[str, ...] = (),
) -> Route:
    """Return the route to a host; the CSV takes precedence over the SSH configuration.

    `hops`, the nearest first, lead to it, whatever ProxyJump of its own configuration is.
    `passed_hops`: the jump hosts whose routes need this one. Raise HostUnavailable if the
    configuration cannot be read, or leads in a circle.
    """
    if target.ip.startswith("-"):
        raise HostUnavailable(f"{target.ip!r} is not a host name; fix column ip")
    values = _read_configuration(target, _expand_home(settings.config))
    first = {key: values[0] for key, values in values.items()}
    address, port, username = first["hostname"], first["port"], first["user"]
    alias = first.get("hostkeyalias", "")
    account, home = _account_and_home()
    here = socket.gethostname()
    tokens = {
        **{"h": address, "n": target.ip, "p": port, "r": username, "k": alias or target.ip},
        **{"l": here, "L": here.split(".")[0], "u": account, "d": home, "i": str(os.getuid())},
        "%": "%",
    }
    configured = _expand(first.get("proxyjump", ""), tokens).split(",")
    hops = hops or [hop.strip() for hop in configured if hop.strip()]
    limit = first.get("connecttimeout", "")
    strict = first.get("stricthostkeychecking", "ask")
    return Route(
        host=target.ip,
        address=address,
        port=int(port),
        username=username,
        key_path=_expand_home(target.ssh_key_path),
        identity_files=_expand_paths(values["identityfile"], tokens),
        identities_only=first.get("identitiesonly") == "yes",
        agent=_agent_socket(first.get("identityagent", "SSH_AUTH_SOCK"), tokens),
        jump=_find_jump(target.ip, hops, settings, passed_hops) if hops else None,
        hop=hops[-1] if hops else "",
        proxy_command="" if hops else _expand(first.get("proxycommand", ""), tokens),
        known_hosts=_expand_paths(values["userknownhostsfile"], tokens),
        global_known_hosts=_expand_paths(values["globalknownhostsfile"], tokens),
        host_key_alias=alias,
        hash_known_hosts=first.get("hashknownhosts") == "yes",
        accept_new=settings.accept_new_hosts or strict in ("accept-new", "no", "off", "false"),
        accept_keys=settings.accept_keys,
        connect_timeout=float(limit) if limit.isdigit() and int(limit) else _SECONDS,
        family=_FAMILIES.get(first.get("addressfamily", ""), socket.AF_UNSPEC),
    )


def _find_jump(
    host: str, hops: Sequence[str], settings: SshSettings, passed_hops: tuple[str, ...]
) -> Route:
    """Return the route to the last of the hops, by those before it."""
    *earlier_hops, hop = hops
    if len(passed_hops) == _MAX_JUMPS:
        raise HostUnavailable(f"ProxyJump leads in a circle: {' via '.join(passed_hops)}")
    try:
        return find_route(_jump_target(hop), settings, earlier_hops, (*passed_hops, hop))
    except HostUnavailable as error:
        raise HostUnavailable(f"{host}: through {hop}: {error}") from None


def _jump_target(hop: str) -> Target:
    """Parse a hop; the SSH configuration provides its keys."""
    found = re.fullmatch(r"(?:ssh://)?(?:(.*)@)?(\[[^\]]+\]|[^:/@]+)(?::(\d+))?/?", hop)
    if not found:
        raise HostUnavailable(f"ProxyJump {hop}: write it as user@host:port")
    return Target(found[2].strip("[]"), int(found[3] or 0), found[1] or "")


def _read_configuration(target: Target, config: str) -> ConfigValues:
    """Return what `ssh -G` prints; without `ssh`, its defaults, unless a configuration exists."""
    if not shutil.which("ssh"):
        for path in [config] if config else map(_expand_home, _CONFIG_FILES):
            if config or Path(path).exists():
                raise HostUnavailable(
                    f"{target.ip}: the SSH configuration {path} cannot be used: this machine has "
                    f"no `ssh`, which reads it; install OpenSSH's client"
                )
        port, user = str(target.ssh_port or 22), target.ssh_username or _account_and_home()[0]
        return _DEFAULTS | {"hostname": [target.ip], "port": [port], "user": [user]}
    command = ["ssh", "-G", *(["-F", config] if config else [])]
    command += ["-p", str(target.ssh_port)] if target.ssh_port else []
    command += ["-l", target.ssh_username] if target.ssh_username else []
    try:
        ran = subprocess.run(
            [*command, "--", target.ip],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HostUnavailable(
            f"{target.ip}: `ssh -G {target.ip}` did not end within {_SECONDS:g} s; "
            f"a Match exec of the SSH configuration may hang"
        ) from None
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or ["`ssh -G` failed without a message"])[0]
        raise HostUnavailable(f"{target.ip}: the SSH configuration cannot be used: {why}")
    values: ConfigValues = {}
    for line in ran.stdout.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        # It prints no quotes: only a blank before the beginning of a path separates two paths.
        values[key] = re.split(r" (?=[/~%$])", values[key][0])
    return values


def _expand(text: str, tokens: dict[str, str]) -> str:
    """Return a value of the configuration with its tokens and variables, which `ssh -G` leaves."""
    if text.lower() == "none":
        return ""
    text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
    return re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)


def _expand_paths(names: list[str], tokens: dict[str, str]) -> tuple[str, ...]:
    paths = (_expand_home(_expand(name, tokens)) for name in names)
    return tuple(dict.fromkeys(filter(None, paths)))


def _agent_socket(name: str, tokens: dict[str, str]) -> str:
    if name == "SSH_AUTH_SOCK" or re.fullmatch(r"\$\w+", name):
        return os.environ.get(name.lstrip("$"), "")
    return _expand_home(_expand(name, tokens))


def _expand_home(path: str) -> str:
    """Return a path in which the account's home stands for ~, as in OpenSSH, whatever HOME is."""
    if path == "~" or path.startswith("~/"):
        return f"{_account_and_home()[1]}{path[1:]}"
    return os.path.expanduser(path)  # ~OTHER is the home of another account


def _account_and_home() -> tuple[str, str]:
    """Return the user's name and home, from where OpenSSH takes them, else from the environment."""
    try:
        found = pwd.getpwuid(os.getuid())
    except KeyError:
        return os.environ.get("USER", ""), os.environ.get("HOME", "/")
    return found.pw_name, found.pw_dir
