"""A user of the frontend on a laptop, for tests, whose processes run on hosts that it reaches by
SSH."""

import json
import sys
import time

from processes import ROOT
from supervising import until

FRONTEND = (sys.executable, str(ROOT / "run_experiment_mm_raw.py"))
STANDS_IN = "/tmp/stands-in"
COLUMNS = "job,ip,tf_port,ssh_port,ssh_username,ssh_password,python,count"


class FarCluster:
    """Rows are written by the names of `Lan`'s hosts; a row has the stand-in unless it is real."""

    def __init__(self, lan, python=STANDS_IN):
        self.lan, self._python = lan, python
        for host in lan.hosts.values():
            program = host.path(STANDS_IN)
            program.write_text(
                f'#!/bin/sh\nexec {sys.executable} -uS {ROOT}/tests/helpers/standing_in.py "$@"\n'
            )
            program.chmod(0o755)

    def row(self, job, name, port=8001, count=""):
        """Of a host: by address, but where only its name leads there."""
        host = self.lan.hosts[name]
        ip = host.name if name == "actor3" else host.address
        port = port if job == "learner" else ""
        how = ["", "", ""]
        if host.password:
            quoted = host.password.replace('"', '""')
            how = [str(host.port), host.username, f'"{quoted}"']
        return ",".join([job, ip, str(port), *how, self._python, str(count)])

    def csv(self, *rows):
        """Written."""
        path = self.lan.laptop.path("/root/workers.csv")
        path.write_text("\n".join([COLUMNS, *rows]) + "\n")
        path.chmod(0o600)
        return "--workers_csv_path=/root/workers.csv"

    def of(self, learners, actors):
        """A row for each of these hosts, by name."""
        rows = [self.row("learner", name) for name in learners]
        return self.csv(*rows, *[self.row("actor", name) for name in actors])

    def frontend(self, *flags):
        """Its command."""
        return (*FRONTEND, *flags)

    def start(self, *flags, **env):
        """The frontend, going on."""
        flags = ("--skip_check", "--level_name=catch", "--logdir=/root/run", *flags)
        return self.lan.laptop.start(*FRONTEND, *flags, **env)

    def run(self, *flags, timeout=90):
        """To its end: exit code and output."""
        ran = self.lan.laptop.run(*FRONTEND, *flags, check=False, timeout=timeout)
        return ran.returncode, ran.stdout + ran.stderr

    def status(self, name=""):
        """As JSON; of one process, if it is named."""
        code, printed = self.run("--status", "--json")
        assert code == 0, printed
        known = json.loads(printed[printed.index("{") :])
        return next(p for p in known["processes"] if p["name"] == name) if name else known

    def until_all(self, state, seconds=30):
        """Waits until all processes are in it."""
        begin = time.monotonic()
        until(lambda: {p["state"] for p in self.status()["processes"]} == {state}, seconds)
        return time.monotonic() - begin

    def left(self):
        """What runs on the hosts but tmux itself and who asks after it, by host."""
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
