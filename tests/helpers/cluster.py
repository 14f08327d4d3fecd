"""A user of the frontend, for tests: with a state folder, a tmux server and a CSV of their own."""

import json
import os
import re
import shutil
import subprocess
import sys

from processes import ROOT, Process, free_port, run
from supervising import until

from launcher.node.task import read_json

FRONTEND = (sys.executable, str(ROOT / "run_experiment_mm_raw.py"))
STRANGE = "a 'b\" $(c); d"


class Cluster:
    """A user of their own: with their own state folder, tmux server and CSV."""

    def __init__(self, folder):
        self.folder, self.logdir = folder, folder / STRANGE
        self.environment = {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TMUX_TMPDIR": str(folder / "tmux"),
            "COLUMNS": "200",
        }
        (folder / "tmux").mkdir()
        self.state = folder / "state" / "impala_mm" / "runs" / "impala"
        self.program = folder / "stands-in"
        self.program.write_text(
            f'#!/bin/sh\nexec {sys.executable} -uS {ROOT}/tests/helpers/standing_in.py "$@"\n'
        )
        self.program.chmod(0o755)

    def csv(self, *rows, columns="job,ip,tf_port,python"):
        """Written; a row without a Python has the stand-in."""
        path = self.folder / "workers.csv"
        path.write_text("\n".join([columns, *rows]) + "\n")
        return f"--workers_csv_path={path}"

    def rows(self, actors=2):
        """One learner and so many actors, stand-ins all."""
        learner = f"learner,localhost,{free_port()},{self.program}"
        return self.csv(learner, *[f"actor,localhost,,{self.program}"] * actors)

    def run(self, *flags, **env):
        """The frontend, to its end."""
        return run(*FRONTEND, *flags, cwd=self.folder, **self.environment | env)

    def start(self, *flags, **env):
        """The frontend, going on."""
        flags = ("--skip_check", f"--logdir={self.logdir}", *flags)
        return Process(*FRONTEND, *flags, **self.environment | env)

    def status(self, name=""):
        """As JSON; of one process, if it is named."""
        code, printed = self.run("--status", "--json")
        assert code == 0, printed
        known = json.loads(printed)
        return next(p for p in known["processes"] if p["name"] == name) if name else known

    def process(self, name):
        """[pid, start] of it, once it says that it is up."""
        log, state = self.logdir / f"{name}.log", self.state / name / "state.json"
        until(lambda: log.exists() and "\nup\n" in log.read_text(), 20)
        # The log may be of a start before, too.
        return until(lambda: read_json(state).get("process"), 20)

    def told(self, name):
        """What a stand-in was told."""
        self.process(name)
        return json.loads(
            re.search(r"^told (.*)$", (self.logdir / f"{name}.log").read_text(), re.MULTILINE)[1]
        )

    def tmux(self, *arguments):
        """What it answers."""
        ran = subprocess.run(
            ["tmux", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | self.environment,
        )
        return ran.stdout

    def end(self):
        """All of it, whatever it does."""
        self.run("--stop")
        if shutil.which("tmux"):
            self.tmux("kill-server")
