"""The route to a host, from its row of the CSV and then from the user's SSH configuration.

OpenSSH itself reads the configuration (`ssh -G`), so that Include, Match and every alias mean what
they mean to `ssh`; paramiko reads it if no `ssh` is installed. This module connects to no host.
"""

import contextlib
import glob
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_SECONDS = 10.0  # for a TCP connection if ConnectTimeout is not set, and for `ssh -G`
# If the configuration names none:
_DEFAULT_KEYS = ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"]
_DEFAULT_KNOWN_HOSTS = ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]
_DEFAULT_GLOBAL_KNOWN_HOSTS = ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"]
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_MAX_INCLUDES = 16  # nested levels
_HIDDEN = "***"

ConfigValues = dict[str, list[str]]  # the values for one host, by lower-case keyword


class Unreachable(Exception):
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


class Settings(NamedTuple):
    """The frontend's SSH flags, which hold for all hosts."""

    config: str = ""  # path of an SSH configuration; empty: the user's and the system's
    accept_new_hosts: bool = False
    accept_keys: tuple[str, ...] = ()  # fingerprints of keys that a new host may show


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
    proxy_jump: tuple[str, ...] = ()  # [user@]host[:port] each, the nearest first
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


def find_route(target: Target, settings: Settings) -> Route:
    """Return the route to a host; the CSV takes precedence over the SSH configuration.

    Raise Unreachable if the configuration cannot be read.
    """
    if target.ip.startswith("-"):
        raise Unreachable(f"{target.ip!r} is not a host name; fix column ip")
    settings = settings._replace(config=_expand_home(settings.config))
    values = (_read_by_openssh if shutil.which("ssh") else _read_by_paramiko)(target, settings)
    first = {key: values[0] for key, values in values.items() if values}
    address = first.get("hostname", target.ip)
    username = target.ssh_username or first.get("user") or _user_and_home()[0]
    port = _port(target, first.get("port", "22"))
    expand = _token_expander(
        target.ip, address, port, username, first.get("hostkeyalias", target.ip)
    )
    jump = _unless_none(first.get("proxyjump", ""))
    strict = first.get("stricthostkeychecking", "ask")
    limit = first.get("connecttimeout", "")
    return Route(
        host=target.ip,
        address=address,
        port=port,
        username=username,
        key_path=_expand_home(target.ssh_key_path),
        identity_files=_expand_paths(values.get("identityfile", _DEFAULT_KEYS), expand),
        identities_only=first.get("identitiesonly") == "yes",
        agent=_agent_socket(first.get("identityagent", "SSH_AUTH_SOCK"), expand),
        proxy_jump=tuple(hop.strip() for hop in expand(jump).split(",") if hop.strip()),
        proxy_command="" if jump else expand(_unless_none(first.get("proxycommand", ""))),
        known_hosts=_expand_paths(values.get("userknownhostsfile", _DEFAULT_KNOWN_HOSTS), expand),
        global_known_hosts=_expand_paths(
            values.get("globalknownhostsfile", _DEFAULT_GLOBAL_KNOWN_HOSTS), expand
        ),
        host_key_alias=first.get("hostkeyalias", ""),
        hash_known_hosts=first.get("hashknownhosts") == "yes",
        accept_new=settings.accept_new_hosts or strict in ("accept-new", "no", "off", "false"),
        accept_keys=settings.accept_keys,
        connect_timeout=float(limit) if limit.isdigit() and int(limit) else _SECONDS,
        family=_FAMILIES.get(first.get("addressfamily", ""), socket.AF_UNSPEC),
    )


def jump_target(hop: str) -> Target:
    """Parse a hop of `Route.proxy_jump`; the SSH configuration provides its keys."""
    found = re.fullmatch(r"(?:ssh://)?(?:(.*)@)?(\[[^\]]+\]|[^:/@]+)(?::(\d+))?/?", hop)
    if not found:
        raise Unreachable(f"ProxyJump {hop}: write it as user@host:port")
    return Target(found[2].strip("[]"), int(found[3] or 0), found[1] or "")


def _read_by_openssh(target: Target, settings: Settings) -> ConfigValues:
    command = ["ssh", "-G", *(["-F", settings.config] if settings.config else [])]
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
        raise Unreachable(
            f"{target.ip}: `ssh -G {target.ip}` did not end within {_SECONDS:g} s; "
            f"a Match exec of the SSH configuration may hang"
        ) from None
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or ["`ssh -G` failed without a message"])[0]
        raise Unreachable(f"{target.ip}: the SSH configuration cannot be used: {why}")
    values: ConfigValues = {}
    for line in ran.stdout.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        # It prints no quotes: only a blank before the beginning of a path separates two paths.
        values[key] = [
            path for each in values.get(key, []) for path in re.split(r" (?=[/~%$])", each)
        ]
    return values


def _read_by_paramiko(target: Target, settings: Settings) -> ConfigValues:
    own = Path(_user_and_home()[1]) / ".ssh" / "config"
    paths = [Path(settings.config)] if settings.config else [own, Path("/etc/ssh/ssh_config")]
    if settings.config and not paths[0].is_file():
        raise Unreachable(f"{target.ip}: there is no SSH configuration {settings.config}")
    import paramiko  # noqa: PLC0415 - its import is slow and seldom needed

    config = paramiko.SSHConfig()
    config.TOKENS_BY_CONFIG_KEY = {  # `find_route` expands them by the account's home, not by HOME
        key: [token for token in tokens if token not in {"~", "%d"}]
        for key, tokens in config.TOKENS_BY_CONFIG_KEY.items()
    }
    # The first value counts, also within other values.
    config.parse([f"User {target.ssh_username}"] if target.ssh_username else [])
    config.parse([f"Port {target.ssh_port}"] if target.ssh_port else [])
    try:
        for path in paths:
            config.parse(_with_includes(path, own.parent))
        found = config.lookup(target.ip)
    except (OSError, ValueError, paramiko.SSHException) as error:
        raise Unreachable(f"{target.ip}: the SSH configuration cannot be used: {error}") from None
    values = {key: value if isinstance(value, list) else [value] for key, value in found.items()}
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        if key in values:
            values[key] = shlex.split(values[key][0])
    return {key: [each for each in values if each] for key, values in values.items()}


def _with_includes(path: Path, folder: Path, depth: int = 0) -> Iterator[str]:
    """Yield the lines of a configuration and of those it includes, which paramiko does not read."""
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text(errors="surrogateescape").splitlines():
            found = re.match(r"\s*include(?:\s*=\s*|\s+)(.+)", line, re.IGNORECASE)
            if not found or depth == _MAX_INCLUDES:
                yield line
                continue
            for pattern in shlex.split(found[1]):
                for name in sorted(glob.glob(str(folder / _expand_home(pattern)))):
                    yield from _with_includes(Path(name), folder, depth + 1)


def _port(target: Target, configured: str) -> int:
    if target.ssh_port:
        return target.ssh_port
    if not configured.isdigit() or not 0 < int(configured) < 65536:
        raise Unreachable(f"{target.ip}: Port {configured} of the SSH configuration is not a port")
    return int(configured)


def _token_expander(
    host: str, address: str, port: int, username: str, alias: str
) -> Callable[[str], str]:
    """Return a function that expands tokens and variables in values of a configuration."""
    user, home = _user_and_home()
    here = socket.gethostname()
    tokens = {
        **{"h": address, "n": host, "p": str(port), "r": username, "k": alias, "%": "%"},
        **{"l": here, "L": here.split(".")[0], "u": user, "d": home, "i": str(os.getuid())},
    }

    def expand(text: str) -> str:
        text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
        return re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)

    return expand


def _expand_paths(names: list[str], expand: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_expand_home(expand(name)) for name in names if _unless_none(name)))


def _agent_socket(name: str, expand: Callable[[str], str]) -> str:
    if name.startswith("$") and not name.startswith("${"):
        return os.environ.get(name[1:], "")
    if name == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    return _expand_home(expand(_unless_none(name)))


def _unless_none(value: str) -> str:
    return "" if value.lower() == "none" else value


def _expand_home(path: str) -> str:
    """Return a path in which the account's home stands for ~, as in OpenSSH, whatever HOME is."""
    if path == "~" or path.startswith("~/"):
        return f"{_user_and_home()[1]}{path[1:]}"
    return os.path.expanduser(path)  # ~OTHER is the home of another account


def _user_and_home() -> tuple[str, str]:
    """Return the user's name and home, from where OpenSSH takes them, else from the environment."""
    try:
        found = pwd.getpwuid(os.getuid())
    except KeyError:
        return os.environ.get("USER", ""), os.environ.get("HOME", "/")
    return found.pw_name, found.pw_dir
