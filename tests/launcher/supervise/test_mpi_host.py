"""The programs by which mpirun has its daemon started on another host, with a stand-in for it.

`tests/test_learner_hosts.py` has a real mpirun and real hosts.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys

import pytest
from processes import free_port, wait
from supervising import Supervised, until

from impala_mm.runtime import run_token
from impala_mm.runtime.certificates import split
from launcher.supervise import mpi_agent, programs
from launcher.supervise.procfs import descendants
from launcher.supervise.task import HEARTBEAT, PORTS_VARIABLE

LINE = (
    "PRTE_PREFIX=/first;export PRTE_PREFIX;PMIX_PREFIX=/first;export PMIX_PREFIX;/first/bin/prted "
    '--daemonize --prtemca ess "env" --prtemca prte_hnp_uri "a@0;tcp://b:1,2" '
    '--prtemca plm_ssh_agent "/no/such/agent -x" --prtemca x "$(touch made) ; touch made"'
)
TOKEN = run_token.make()


class Pair:
    """The process of another learners' host, and mpirun's agent that waits for it."""

    def __init__(self, folder, script):
        self.folder, self.port, self._started = folder, free_port(), []
        daemon = folder / "mpi" / "bin" / "prted"
        daemon.parent.mkdir(parents=True)
        daemon.write_text(f"#!{sys.executable} -uSE\nimport os, subprocess, sys, time\n{script}\n")
        daemon.chmod(0o755)
        self.beat = folder / "learners-1" / "beat"
        self.beat.parent.mkdir()

    def start(self, command, token=TOKEN, **environment):
        """Start a program of which all output is in `printed`."""
        self._started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.folder,
                env=os.environ | {mpi_agent.TOKEN_VARIABLE: token} | environment,
            )
        )
        return self._started[-1]

    def host(self, token=TOKEN):
        """Start the process of the other host."""
        command = ["mpi_host", "127.0.0.1", str(self.folder / "mpi"), str(self.port)]
        beat = {HEARTBEAT: str(self.beat)}
        program, _ = programs.complete([programs.PACKAGE, *command], {})
        return self.start(program, token, **beat)

    def agent(self, line=LINE):
        """Let mpirun call its agent."""
        ports = {PORTS_VARIABLE: json.dumps({"there": ["127.0.0.1", self.port]})}
        program = programs.command_of("mpi_agent", "there", *line.split())
        return self.start(program, **ports, **{HEARTBEAT: str(self.folder / "beat")})

    def dial(self, token=None):
        """Connect to the agent, once it listens; with `token` by TLS."""
        bare = until(lambda: _connect(self.port))
        return mpi_agent.context(token, False).wrap_socket(bare, server_hostname="learner")

    def end(self):
        """End all programs."""
        for each in self._started:
            each.kill()
            each.communicate()


def _connect(port):
    try:
        return socket.create_connection(("127.0.0.1", port), 5)
    except OSError:
        return None


@pytest.fixture
def pair(tmp_path):
    made = []

    def make(script="time.sleep(60)"):
        made.append(Pair(tmp_path, script))
        return made[0]

    yield make
    for each in made:
        each.end()


def test_the_daemon_gets_mpiruns_words_and_its_own_hosts_folder_and_its_code_returns(pair):
    names = ("PRTE_PREFIX", "PMIX_PREFIX", "OPAL_PREFIX")
    own = pair(f"print(sys.argv[1:], [os.environ.get(n) for n in {names}])\nsys.exit(7)")
    agent = own.agent()
    host = own.host()
    printed, _ = agent.communicate(timeout=20)
    words = [
        *("--prtemca", "ess", "env", "--prtemca", "prte_hnp_uri", "a@0;tcp://b:1,2"),
        *("--prtemca", "plm_ssh_agent", "/bin/sh"),  # it exists on every host
        *("--prtemca", "x", "$(touch made) ; touch made"),  # no shell has read it
    ]
    prefix = str(own.folder / "mpi")
    assert printed == f"{words} {[prefix, prefix, None]}\n"
    assert agent.returncode == 7
    assert not (own.folder / "made").exists()
    assert own.agent("FIRST=/x;/first/bin/prted").wait(20) == 7, "of the next mpirun"
    assert host.poll() is None


@pytest.mark.parametrize(
    ("line", "why"),
    [(LINE, "prted: No such file"), ("orted --mca a b", "no daemon of Open MPI 5: orted --mca")],
)
def test_a_daemon_that_cannot_be_started_is_named(pair, line, why):
    own = pair()
    (own.folder / "mpi" / "bin" / "prted").unlink()
    agent = own.agent(line)
    own.host()
    assert why in agent.communicate(timeout=20)[0]
    assert agent.returncode == 127


def test_the_end_of_the_agent_ends_the_daemon_and_all_that_it_started(pair):
    own = pair(
        "print('up')\nsubprocess.Popen(['sleep', '60'], start_new_session=True)\ntime.sleep(60)"
    )
    agent, host = own.agent(), own.host()
    assert agent.stdout.readline() == "up\n"
    (own.folder / "learners-1" / "beat-1").touch()
    waits = own.folder / "learners-1" / "waits-127.0.0.1"
    assert not waits.exists()
    assert until(lambda: len(descendants(host.pid)) == 2)
    agent.send_signal(signal.SIGKILL)
    until(lambda: not descendants(host.pid))
    until(waits.exists)
    agent = own.agent()
    assert agent.stdout.readline() == "up\n", "the host serves the next mpirun"
    assert not (own.folder / "learners-1" / "beat-1").exists(), "of the last ranks"


def test_the_agent_fails_if_the_process_of_the_host_ends(pair):
    own = pair("print('up')\ntime.sleep(60)")
    agent, host = own.agent(), own.host()
    assert agent.stdout.readline() == "up\n"
    host.kill()
    assert "daemon on there is lost: " in agent.communicate(timeout=20)[0]
    assert agent.returncode == 255


def test_the_agent_says_for_which_host_it_waits_and_tells_the_supervisor(pair):
    own = pair()
    agent = own.agent()
    until((own.folder / "waits-there").exists)
    assert agent.stdout.readline().startswith("waiting for there: no process of the run has conn")
    own.host()
    until(lambda: not (own.folder / "waits-there").exists())


def _of(parts):
    """Return a token file whose part for learners is another one."""
    secret, authority, *_ = TOKEN.partition("\n")[0], *split(TOKEN)
    return "\n".join([secret, authority, *parts, *parts])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (run_token.make, ""),
        (lambda: _of(split(run_token.make())[1:3]), "CERTIFICATE_VERIFY_FAILED"),
        (lambda: _of(split(TOKEN)[3:]), "its certificate is not that of a learner"),
    ],
    ids=["another run", "another run's certificate", "an actor's certificate"],
)
def test_other_certificates_are_refused_before_a_word_is_said(pair, make, why):
    own = pair("sys.exit(7)")
    agent = own.agent()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        own.dial(make()).recv(1) or _closed()
    own.host()
    printed, _ = agent.communicate(timeout=20)
    assert agent.returncode == 7, "strangers do not end it"
    assert printed.startswith("refused a connection from 127.0.0.1: ")
    assert why in printed


def _closed():
    raise ConnectionResetError


def test_a_host_enters_although_strangers_say_nothing_or_speak_no_tls(pair):
    own = pair("sys.exit(7)")
    agent = own.agent()
    silent = [until(lambda: _connect(own.port)) for _ in range(150)]
    silent[0].sendall(b"GET / HTTP/1.0\r\n\r\n")
    own.host()
    printed, _ = agent.communicate(timeout=20)
    assert agent.returncode == 7
    assert printed.count("refused a connection") == 1, "each address is named once"
    for each in silent:
        each.close()


def test_a_host_takes_words_from_the_runs_learners_alone(pair):
    own = pair("sys.exit(7)")
    own.agent()
    until((own.folder / "waits-there").exists)
    line = own.host(run_token.make()).stdout.readline()
    assert line.startswith(f"waiting for the learners' mpirun at 127.0.0.1:{own.port} (")
    assert "CERTIFICATE_VERIFY_FAILED" in line


def test_behind_a_translation_of_addresses_it_listens_everywhere():
    with mpi_agent.listen("192.0.2.99", 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_a_process_that_waits_for_a_host_is_not_killed_and_starts_its_time_anew(tmp_path):
    script = (
        "echo up; touch learners/waits-10.0.0.2; sleep 3; rm learners/waits-10.0.0.2; "
        "sleep 1; echo still; exec sleep 60"
    )
    learners = Supervised(tmp_path, ["sh", "-c", script], stall_secs=0.3)
    try:
        assert until(lambda: learners.state.get("awaits")) == ["10.0.0.2"]
        learners.until_it_says("still")
        assert wait(learners.process, 10) == 137
        assert learners.state["failure"]["why"] == "it was killed: no heartbeat for 0.3 s"
    finally:
        learners.end()
