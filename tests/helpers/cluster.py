"""A user of the frontend on this machine; their processes run on this machine, too."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from processes import ROOT, Process, free_port, run
from supervising import until

import run_experiment_mm_raw
from launcher.supervise.json_files import read_json

FRONTEND = (sys.executable, str(ROOT / "run_experiment_mm_raw.py"))
STRANGE = "a 'b\" $(c); d"


def write_stand_in(path):
    """Write the program that runs in place of Python in a row: `standing_in`.

    It runs the frontend, which a host with the run's controller has, itself.
    """
    path.write_text(
        f'#!/bin/sh\n[ "$1" = {FRONTEND[1]} ] && exec {sys.executable} "$@"\n'
        f'exec {sys.executable} -uS {ROOT}/tests/helpers/standing_in.py "$@"\n'
    )
    path.chmod(0o755)


class FrontendUser:
    """A user who runs the frontend with `run`, which returns its exit code and output.

    `ask` does so for commands that start no process.
    """

    far = False  # whether the frontend may print lines about its connections first

    def status(self, name=""):
        """Return the status as a dictionary, or that of one process if it is named."""
        code, printed = self.ask("--status", "--json")
        assert code == 0, printed
        if self.far:
            known, _ = json.JSONDecoder().raw_decode(printed[printed.index("{") :])
        else:
            known = json.loads(printed)
        return next(p for p in known["processes"] if p["name"] == name) if name else known


class Cluster(FrontendUser):
    """A user of the frontend with a state folder, a tmux server and a CSV of their own."""

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
        write_stand_in(self.program)

    def csv(self, *rows, columns="job,ip,tf_port,python"):
        """Write the CSV with these rows, and return the flag that names it."""
        path = self.folder / "workers.csv"
        path.write_text("\n".join([columns, *rows]) + "\n")
        return f"--workers_csv_path={path}"

    def rows(self, actors=2):
        """Write a CSV with one learner and this many actors, all stand-ins."""
        learner = f"learner,localhost,{free_port()},{self.program}"
        return self.csv(learner, *[f"actor,localhost,,{self.program}"] * actors)

    def run(self, *flags, **env):
        """Run the frontend to its end, and return its exit code and output."""
        return run(*FRONTEND, *flags, cwd=self.folder, **self.environment | env)

    def ask(self, *flags, **env):
        """Run the frontend in this process, which takes a tenth of the time."""
        written = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        with (
            mock.patch.dict(os.environ, self.environment | env),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(written),
            contextlib.redirect_stderr(written),
            pytest.raises(SystemExit) as ended,
        ):
            run_experiment_mm_raw.main([FRONTEND[1], *flags])
        return ended.value.code, written.buffer.getvalue().decode()

    def start(self, *flags, **env):
        """Start the frontend, and return the process."""
        flags = ("--skip_check", f"--logdir={self.logdir}", *flags)
        return Process(*FRONTEND, *flags, **self.environment | env)

    def start_following(self):
        """Start a frontend that follows the run which another one has started."""
        return Process(*FRONTEND, "--attach", **self.environment)

    def process(self, name):
        """Wait until a process is up, and return its [pid, start time]."""
        log, state = self.logdir / f"{name}.log", self.state / name / "state.json"
        until(lambda: log.exists() and "\nup\n" in log.read_text(), 20)
        # The log may also come from an earlier start.
        return until(lambda: read_json(state).get("process"), 20)

    def told(self, name):
        """Return the flags, working directory and environment that a stand-in was started with."""
        self.process(name)
        return json.loads(
            re.search(r"^told (.*)$", (self.logdir / f"{name}.log").read_text(), re.MULTILINE)[1]
        )

    def tmux(self, *arguments):
        """Run a tmux command, and return its output."""
        ran = subprocess.run(
            ["tmux", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | self.environment,
        )
        return ran.stdout

    def end(self):
        """Stop all runs and the tmux server."""
        for path in self.state.parent.glob("*/run.json"):
            self.run("--stop", f"--tmux_sess={path.parent.name}")
        if shutil.which("tmux"):
            self.tmux("kill-server")
