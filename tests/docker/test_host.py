"""A container as a host of the CSV, without an engine: its real sshd, as a user without root."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import container
import pytest
from container import Container
from processes import ROOT, free_port, needs_horovod, run

pytestmark = pytest.mark.skipif(
    not all(map(os.path.exists, ("/usr/sbin/sshd", "/usr/bin/ssh"))), reason="there is no OpenSSH"
)


@pytest.fixture
def key(tmp_path):
    """Return the path of the private key of the user who logs in."""
    container.needed()
    path = tmp_path / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


class Login:
    """A login into a container with the ssh command, as a user has it."""

    def __init__(self, key, port, known_hosts):
        options = ("StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={known_hosts}")
        self.options = [part for option in options for part in ("-o", option)]
        self.options += ["-F", "none", "-i", str(key), "-o", "BatchMode=yes"]
        self.port = str(port)

    def run(self, command, *options):
        """Run a command; return its exit code and output."""
        to = ("-p", self.port, "impala@127.0.0.1")
        return run("ssh", *self.options, *options, *to, command, limit=30)

    def send(self, file, target):
        """Send a file with SFTP."""
        there = f"impala@127.0.0.1:{target}"
        return run("scp", "-s", *self.options, "-P", self.port, file, there, limit=30)


def _host(image, folder, key):
    """Yield a container that accepts the key, on a port of its own, and a login to it."""
    keys = folder / "home" / ".ssh"
    keys.mkdir(parents=True, exist_ok=True)
    shutil.copy(f"{key}.pub", keys / "authorized_keys")
    port = free_port()
    started = Container(image, folder, "host", SSH_PORT=str(port))
    return started, Login(key, port, folder / "known_hosts")


def test_a_container_is_a_host_that_a_key_opens_and_nothing_else(tmp_path, key):
    host, login = _host("actor", tmp_path / "host", key)
    said = host.process.until(r"in the CSV: ssh_port (.*), ssh_username impala, python (.*), workd")
    host.process.until("Server listening on 0.0.0.0")
    assert (said[1], said[2]) == (login.port, "/opt/impala_mm/.venv/bin/python")

    asked = 'echo $(id -un) $(command -v python) $(command -v tmux) $LANG; cd "$HOME"; pwd'
    code, printed = login.run(asked)
    assert code == 0, printed
    assert "impala /opt/impala_mm/.venv/bin/python" in printed
    assert f"{shutil.which('tmux') or ''} C.UTF-8".strip() in printed
    assert printed.endswith("/home/impala\n")
    code, printed = login.run("cd /opt/impala_mm && python experiment.py --help")
    assert code == 0, printed
    assert "--job_name" in printed
    code, printed = login.run(
        "cd /opt/impala_mm && python -c 'import launcher.supervise.supervisor'"
    )
    assert code == 0, printed
    assert login.send(__file__, "sent.py")[0] == 0
    sent = tmp_path / "host" / "home" / "sent.py"
    assert (sent.stat().st_uid, sent.read_bytes()) == (1000, Path(__file__).read_bytes())

    for others in ("PubkeyAuthentication=no", "PreferredAuthentications=password"):
        code, printed = login.run("true", "-o", others)
        assert code == 255
        assert "Permission denied (publickey)" in printed


def test_a_host_that_starts_again_is_the_same_host_and_another_is_another(tmp_path, key):
    login = None
    for _ in range(2):
        host, login = _host("learner", tmp_path / "first", key)
        host.process.until("Server listening on 0.0.0.0")
        code, printed = login.run("mpirun --version")
        assert code == 0, printed
        host.signal(signal.SIGTERM)
        host.process.wait(10)
    known = [line.split()[-1] for line in (tmp_path / "first/known_hosts").read_text().splitlines()]
    assert len(known) == 2
    assert len(set(known)) == 1
    made = tmp_path / "first/home/host_keys/ed25519"
    assert made.stat().st_mode & 0o777 == 0o600
    other, _ = _host("learner", tmp_path / "other", key)
    other.process.until("Server listening on 0.0.0.0")
    assert (tmp_path / "other/home/host_keys/ed25519").read_bytes() != made.read_bytes()


def test_a_host_that_nobody_could_log_into_says_what_is_missing(tmp_path):
    container.needed()
    started = Container("actor", tmp_path / "host", "host")
    assert started.process.wait(10) == 2
    said = "error: /home/impala/.ssh/authorized_keys is missing, empty or not readable by user"
    assert started.process.printed().startswith(said)
    started = Container("actor", tmp_path / "other", "sh", "-c", "id -u; pwd; exit 7")
    assert started.process.wait(10) == 7
    assert started.process.printed() == "1000\n/opt/impala_mm\n"


def test_the_sshd_config_and_the_entry_parse(tmp_path):
    made = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", made], check=True)
    config = ROOT / "docker" / "sshd_config"
    command = ["/usr/sbin/sshd", "-T", "-f", config, "-h", made, "-p", "2222"]
    # As root, sshd needs its own folder; as the image's user it does not.
    user = ["unshare", "--map-user=1000"] if os.geteuid() == 0 else []
    ran = subprocess.run([*user, *command], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr, "no option that this sshd calls old"
    settings = ran.stdout.splitlines()
    for line in ("usepam no", "passwordauthentication no", "authenticationmethods publickey"):
        assert line in settings
    subprocess.run(["sh", "-n", ROOT / "docker" / "entry.sh"], check=True)


@pytest.fixture
def cable():
    """Yield two networks, by name and address, that reach each other and nothing else."""
    container.needed()
    if not shutil.which("ip"):
        pytest.skip("needs iproute2")
    names = [f"docker{os.getpid()}{letter}" for letter in "ab"]
    addresses = ["10.78.0.1", "10.78.0.2"]
    ends = [f"d{os.getpid()}{letter}" for letter in "ab"]
    try:
        made = [_ip("netns", "add", name) for name in names]
        if any(made):
            pytest.skip("no network namespaces here")
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, addresses, strict=True):
            _ip("link", "set", end, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for device in (end, "lo"):
                _ip("-n", name, "link", "set", device, "up")
        yield dict(zip(names, addresses, strict=True))
    finally:
        for name in names:
            _ip("netns", "del", name)


def _ip(*words):
    return subprocess.run(["ip", *words], check=False, capture_output=True).returncode


@needs_horovod
@pytest.mark.slow
def test_mpirun_in_one_container_starts_a_learner_in_another_by_its_sshd(cable, key, tmp_path):
    """It is run on two machines: each container has its own network, name and home."""
    first, second = cable
    for name in ("one", "two"):
        (tmp_path / name / "home" / ".ssh").mkdir(parents=True)
    shutil.copy(f"{key}.pub", tmp_path / "two/home/.ssh/authorized_keys")
    shutil.copy(key, tmp_path / "one/home/.ssh/id_ed25519")
    config = "Host 10.78.0.*\n  Port 2222\n  StrictHostKeyChecking accept-new\n"
    (tmp_path / "one/home/.ssh/config").write_text(config)
    host = Container("learner", tmp_path / "two", "host", net=second)
    host.process.until("Server listening on 0.0.0.0 port 2222")
    learners = Container(
        *("learner", tmp_path / "one", "mpirun", "--host", ",".join(cable.values()), "-np", "2"),
        *("--mca", "btl_tcp_if_include", "10.78.0.0/24", "--mca", "mpi_yield_when_idle", "1"),
        *("sh", "-c", "hostname; exec python experiment.py --mode=rehearsal"),
        net=first,
    )
    learners.process.until("all 2 learners learnt", 90)
    assert learners.process.wait(20) == 0
    assert {"one", "two"} <= set(learners.process.printed().split())
    assert f"Accepted publickey for impala from {cable[first]}" in host.process.printed()
