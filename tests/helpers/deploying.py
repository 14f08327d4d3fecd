"""A user on the laptop of a test's hosts with a small project to deploy."""

import json
import os
import shutil
import sys
from pathlib import Path

from processes import ROOT

_CALL = """
import json, sys
from pathlib import Path
from launcher.hosts.deploy import deploy_project
from launcher.plan.settings import LauncherConfig, SshSettings
from launcher.plan.workers_csv import read
from launcher.hosts.hosts import Hosts, find_targets
from launcher.follow.connect import candidate_pythons
config = LauncherConfig(deploy=True, wheelhouse=sys.argv[1])
sources = {name: Path(path) for name, path in json.loads(sys.argv[2]).items()}
rows, _ = read("/root/workers.csv")
hosts = Hosts("impala", find_targets(rows), SshSettings("", False))
print("unreached", json.dumps(hosts.connect(print, candidate_pythons(rows, True))))
print("failed", json.dumps(deploy_project(hosts, rows, config, print, sources)), flush=True)
hosts.close()
"""
# Replaces docker/install.py; it runs the Python code in a host's file /root/set-up.
_SET_UP = """
import pathlib, socket, sys, time
if "--fits" in sys.argv:
    sys.exit(0)
print("[set-up] begins", flush=True)
pathlib.Path(".venv").mkdir(exist_ok=True)
pathlib.Path(".venv/told").write_text(" ".join(sys.argv[1:]))
order = pathlib.Path.home() / "set-up"
if order.exists():
    exec(order.read_text())
"""
IGNORED = "runs/\n.venv/\n__pycache__/\nworkers.csv\n"


class Project:
    """A project in /root/clone of the laptop."""

    def __init__(self, lan, git=True):
        self.lan, self.folder = lan, lan.laptop.path("/root/clone")
        self.folder.mkdir()
        no_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "launcher", self.folder / "launcher", ignore=no_caches)
        (self.folder / "impala_mm" / "config").mkdir(parents=True)
        for name in ("..__init__", "__init__", "errors", "flags", "messages", "peer_names"):
            file = f"impala_mm/config/{name}.py".replace("config/..", "")
            shutil.copy(ROOT / file, self.folder / file)
        self.write("docker/install.py", _SET_UP)
        self.write("bin/program", "#!/bin/sh\n", mode=0o755)
        self.write("experiment.py", "one\n")
        self.write(".gitignore", IGNORED)
        self.write("workers.csv", "job,ip\n")
        self.write("runs/old/checkpoint", "large\n")
        self.write(".venv/bin/activate", "not a host's\n")
        self.write("call.py", _CALL)
        if git:
            lan.laptop.run("git", "-C", "/root/clone", "init", "-q")
            lan.laptop.run("git", "-C", "/root/clone", "add", ".")

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def csv(self, *rows, columns="job,ip,ssh_port,ssh_username,ssh_password,workdir,python"):
        path = self.lan.laptop.path("/root/workers.csv")
        here = ["learner,localhost,,,,,"] * (not any(row.startswith("learner") for row in rows))
        path.write_text("\n".join([columns, *here, *rows]) + "\n")
        path.chmod(0o600)

    def deploy(self, wheelhouse="", timeout=60, sources=None):
        """Deploy, and return (failures by host, the complete output).

        `sources`: paths of the user's own files on the laptop, by name.
        """
        ran = self.lan.laptop.run(*self._command(wheelhouse, sources), timeout=timeout)
        failed = next(li for li in ran.stdout.splitlines() if li.startswith("failed "))
        return json.loads(failed.removeprefix("failed ")), ran.stdout

    def start(self, wheelhouse=""):
        """Start a deployment, and return the process."""
        return self.lan.laptop.start(*self._command(wheelhouse))

    def _command(self, wheelhouse, sources=None):
        program = (sys.executable, "-u", "/root/clone/call.py")
        return (*program, wheelhouse, json.dumps(sources or {}))


def under(folder: Path) -> dict[str, str]:
    """Return the contents of all files below a host's folder, without the deployment's own list."""
    found = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            if path.suffix != ".pyc":
                found[str(path.relative_to(folder))] = path.read_bytes().decode(errors="replace")
    found.pop(".deployed.json", None)
    return found
