"""A user of the frontend on a laptop whose processes run on hosts reached by SSH."""

import json
import sys
import time

from processes import ROOT
from supervising import until

FRONTEND = (sys.executable, str(ROOT / "run_experiment_mm_raw.py"))
STANDS_IN = "/tmp/stands-in"
COLUMNS = "job,ip,tf_port,ssh_port,ssh_username,ssh_password,python,count"


class FarCluster:
    """A user on the laptop of `Lan`; rows name its hosts and run a stand-in or `python`."""

    def __init__(self, lan, python=STANDS_IN):
        self.lan, self._python = lan, python
        for host in lan.hosts.values():
            program = host.path(STANDS_IN)
            program.write_text(
                f'#!/bin/sh\nexec {sys.executable} -uS {ROOT}/tests/helpers/standing_in.py "$@"\n'
            )
            program.chmod(0o755)

    def row(self, job, name, port=8001, count=""):
        """Return a row for a host, by its address, or by its name if only that reaches it."""
        host = self.lan.hosts[name]
        ip = host.name if name == "actor3" else host.address
        port = port if job == "learner" else ""
        how = ["", "", ""]
        if host.password:
            quoted = host.password.replace('"', '""')
            how = [str(host.port), host.username, f'"{quoted}"']
        return ",".join([job, ip, str(port), *how, self._python, str(count)])

    def csv(self, *rows):
        """Write the CSV with these rows, and return the flag that names it."""
        path = self.lan.laptop.path("/root/workers.csv")
        path.write_text("\n".join([COLUMNS, *rows]) + "\n")
        path.chmod(0o600)
        return "--workers_csv_path=/root/workers.csv"

    def of(self, learners, actors):
        """Write a CSV with one row for each of these hosts, by name."""
        rows = [self.row("learner", name) for name in learners]
        return self.csv(*rows, *[self.row("actor", name) for name in actors])

    def frontend(self, *flags):
        """Return the frontend's command with these flags."""
        return (*FRONTEND, *flags)

    def start(self, *flags, **env):
        """Start the frontend, and return the process."""
        flags = ("--skip_check", "--level_name=catch", "--logdir=/root/run", *flags)
        return self.lan.laptop.start(*FRONTEND, *flags, **env)

    def run(self, *flags, timeout=90):
        """Run the frontend to its end, and return its exit code and output."""
        ran = self.lan.laptop.run(*FRONTEND, *flags, check=False, timeout=timeout)
        return ran.returncode, ran.stdout + ran.stderr

    def status(self, name=""):
        """Return the status as a dictionary, or that of one process if it is named."""
        code, printed = self.run("--status", "--json")
        assert code == 0, printed
        known = json.loads(printed[printed.index("{") :])
        return next(p for p in known["processes"] if p["name"] == name) if name else known

    def until_all(self, state, seconds=30):
        """Wait until all processes are in this state, and return the seconds it took."""
        begin = time.monotonic()
        until(lambda: {p["state"] for p in self.status()["processes"]} == {state}, seconds)
        return time.monotonic() - begin

    def left(self):
        """Return by host the processes that run, except tmux, sshd and the frontend's agent."""
        found = {}
        for host in self.lan.hosts.values():
            for line in host.processes() if host.up else ():
                program = line.split()[0].rpartition("/")[2]
                if (
                    program not in ("tmux", "sshd:")
                    and "launcher.node import agent_main" not in line
                ):
                    found.setdefault(host.name, []).append(line)
        return found
