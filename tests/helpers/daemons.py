"""A supervisor of mpirun's daemon on this machine, and stand-ins for the daemon and for mpirun."""

import subprocess
import sys
from pathlib import Path

from processes import ROOT

from impala_mm.runtime import certificates
from launcher.supervise import mpirun_agent, order_channel, programs
from launcher.supervise.json_files import write_json

LINE = (
    'PRTE_PREFIX=/mpi;export PRTE_PREFIX;/mpi/bin/prted --daemonize --prtemca ess "env" '
    '--prtemca ess_base_nspace "a@0" --prtemca ess_base_vpid 1 --prtemca prte_hnp_uri "a;tcp://b:1"'
)


class DaemonHost:
    """A host with a supervisor; its daemon is a script of Python that prints its arguments."""

    def __init__(self, place: Path, script: str, **changes):
        self.state, self.first = place / "state", place / "first"
        for each in (self.state, self.first, place / "mpi" / "bin"):
            each.mkdir(parents=True)
        self.daemon = place / "mpi" / "bin" / "prted"
        self.daemon.write_text(f"#!{sys.executable} -uSE\nimport os, sys, time\n{script}\n")
        self.daemon.chmod(0o755)
        self.content = certificates.make(order_channel.ROLES)
        parts = certificates.by_role(self.content, order_channel.ROLES)
        self.credentials = parts[order_channel.MPIRUN]
        self.task = {
            "address": "127.0.0.1",
            "credentials": parts[order_channel.SUPERVISOR],
            "prefix": str(place / "mpi"),
            "announced": [],
            "start": "the-start",
            "folder": str(self.state),
            "lease_secs": 0.0,
        } | changes
        self.process, self.entry = programs.start_daemon_supervisor(self.task)
        if self.task["folder"]:
            self.process.stdin.close()
        self.introduce(self.credentials)

    def introduce(self, credentials, **changes):
        """Tell mpirun's agent these credentials, and where the supervisor listens."""
        supervisors = {"127.0.0.1": self.entry | changes}
        self.agent = mpirun_agent.write(self.first, credentials, supervisors)

    def find_silent(self):
        """Return the hosts that the first one finds silent."""
        return mpirun_agent.find_silent(mpirun_agent.read(self.first))

    def order(self, line=LINE):
        """Start mpirun's agent, which orders a daemon by this line."""
        return subprocess.Popen(
            [self.agent, "127.0.0.1", *line.split(" ")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )

    def log(self):
        """Return the supervisor's log."""
        path = self.state / "daemon.log"
        return path.read_text() if path.exists() else ""

    def request_stop(self, mode):
        """Request the run to stop."""
        (self.state / "stop").write_text(mode)

    def forget(self):
        """Let another start of the run take its state."""
        write_json(self.state / "daemon.json", {"id": "another"})

    def end(self):
        """Kill it and its daemon."""
        self.process.kill()
        self.process.wait()
        if not self.process.stdin.closed:
            self.process.stdin.close()
