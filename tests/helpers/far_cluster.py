"""A user of the frontend on a laptop whose processes run on hosts reached by SSH."""

import sys
import time
from pathlib import Path

from cluster import FRONTEND, FrontendUser, write_stand_in
from deadlines import Deadline
from supervising import until

STANDS_IN = "/tmp/stands-in"
MPI_PYTHON = "/tmp/mpi/bin/python"  # a stand-in, too, beside mpirun
COLUMNS = "job,ip,tf_port,ssh_port,ssh_username,ssh_password,python,count"


class FarCluster(FrontendUser):
    """A user on the laptop of `Lan`; rows name its hosts and run a stand-in or `python`."""

    far = True

    def __init__(self, lan, python=STANDS_IN):
        self.lan, self._python = lan, python
        for host in lan.hosts.values():
            write_stand_in(host.path(STANDS_IN))

    @classmethod
    def with_mpirun(cls, lan):
        """Return a cluster whose hosts have a folder with mpirun and a stand-in for Python."""
        for host in lan.hosts.values():
            prefix = host.path("/tmp/mpi")
            (prefix / "bin").mkdir(parents=True)
            write_stand_in(prefix / "bin" / "python")
            for name in ("bin/mpirun", "bin/prted", "bin/prterun", "lib", "share"):
                (prefix / name).symlink_to(Path(sys.prefix, name))
        return cls(lan, python=MPI_PYTHON)

    def row(self, job, name, port="", count=""):
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

    def start_following(self, *flags, **env):
        """Start a frontend that follows the run which another one has started."""
        return self.lan.laptop.start(*FRONTEND, "--attach", *flags, **env)

    def run(self, *flags, timeout=90):
        """Run the frontend to its end, and return its exit code and output."""
        ran = self.lan.laptop.run(*FRONTEND, *flags, check=False, timeout=timeout)
        return ran.returncode, ran.stdout + ran.stderr

    ask = run

    def until_all(self, state, seconds=30):
        """Wait until all processes are in this state, and return the seconds it took."""
        begin = time.monotonic()
        until(lambda: {p["state"] for p in self.status()["processes"]} == {state}, seconds)
        return time.monotonic() - begin

    def stop(self, frontend):
        """Stop a run by Ctrl-C in its frontend, which leaves nothing on any host."""
        frontend.interrupt(90)
        assert self.left() == {}, frontend.printed()

    def left(self):
        """Return by host the processes that run, except tmux, sshd and the frontend's agent.

        Supervisors and windows end a moment after the processes that they supervise and show.
        """
        deadline = Deadline(3)
        while (found := self._running()) and not deadline.is_over():
            time.sleep(0.1)
        return found

    def _running(self):
        found = {}
        for host in self.lan.hosts.values():
            for line in host.processes() if host.up else ():
                program = line.split()[0].rpartition("/")[2]
                if program not in ("tmux", "sshd:") and "exec(base64.b64decode(" not in line:
                    found.setdefault(host.name, []).append(line)
        return found
