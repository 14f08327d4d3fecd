"""A real Slurm with four nodes on this machine runs the job that --emit=slurm prints."""

import contextlib
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest
from cluster import FRONTEND
from processes import free_port, needs_horovod, run
from supervising import until

needs_slurm = pytest.mark.skipif(
    not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch"))), reason="there is no Slurm here"
)
_NODES = ("a", "b", "c", "d")  # two for learners, one for each other component
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/ctl.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
TmpFS={folder}/%n
SlurmctldLogFile={folder}/ctl.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=2,sched_interval=2
SlurmdParameters=config_overrides
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=8000\n"
)


class Slurm:
    """A Slurm controller with its nodes, and commands for it."""

    def __init__(self, folder):
        self.folder, self.daemons, self.own = folder, [], set()
        conf = folder / "slurm.conf"
        host = socket.gethostname().split(".")[0]
        known = {"folder": folder, "host": host, "user": getpass.getuser()}
        text = _CONF.format(port=free_port(), nodes=",".join(_NODES), **known)
        text += "".join(_NODE.format(name=n, host=host, port=free_port()) for n in _NODES)
        conf.write_text(text)
        self.environment = {
            "SLURM_CONF": str(conf),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        for name in ("state", *_NODES):
            (folder / name).mkdir()

    def start(self):
        """Start the daemons, and wait until all nodes are idle."""
        for daemon, *flags in (["slurmctld"], *(["slurmd", "-N", name] for name in _NODES)):
            command = [shutil.which(daemon), "-D", *flags]
            how = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
            how |= {"env": os.environ | self.environment, "start_new_session": True}
            self.daemons.append(subprocess.Popen(command, **how))
        idle = f"{len(_NODES)} idle\n"
        until(lambda: self.ask("sinfo", "-h", "-o", "%D %t") == idle, 30)
        self.own = set(self.processes())

    def ask(self, *command, **env):
        """Run a command of Slurm, and return its output."""
        return run(*command, cwd=self.folder, limit=60, **self.environment | env)[1]

    def submit(self, script, *options, **env):
        """Submit a job whose learners run on two nodes, and return its number."""
        path = self.folder / "job.sh"
        path.write_text(script)
        options = ("--parsable", "--output=%j.out", "--nodes=2", "--cpus-per-task=2", *options)
        return self.ask("sbatch", *options, ":", "--nodes=1", str(path), **env).strip()

    def state(self, job):
        """Return a job's state, such as PENDING or RUNNING."""
        return re.search(r"JobState=(\w+)", self.ask("scontrol", "show", "job", job))[1]

    def printed(self, job):
        """Return a job's output."""
        path = self.folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def end(self):
        """Stop the daemons, and kill all processes that they started."""
        if self.daemons:
            self.ask("scancel", "--user", getpass.getuser())
            with contextlib.suppress(AssertionError):
                until(lambda: not self.ask("squeue", "-h"), 40)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def processes(self):
        """Yield the running processes with this Slurm's configuration in their environment."""
        mark = f"SLURM_CONF={self.folder}/".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read():
                    yield int(name)


@pytest.fixture
def slurm(tmp_path_factory):
    """Yield a running Slurm; its folder's path is short, because sockets are in it."""
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
        yield made
    finally:
        made.end()


def _script(folder, *flags, evaluator=False):
    """Return the job for two learners whose rows have the same port, and two actors.

    No network has the hosts of these rows: Slurm chooses the nodes.
    """
    port = free_port()
    rows = ["job,ip,tf_port,count,num_envs,memory"]
    rows += [f"learner,gpu{i},{port},,,2Gi" for i in (1, 2)]
    rows += ["actor,many,,2,4", *["evaluator,one"] * evaluator]
    (folder / "workers.csv").write_text("\n".join(rows))
    common = ("--workers_csv_path=workers.csv", "--level_name=catch")
    small = ("--batch_size=4", "--unroll_length=20")
    command = [*FRONTEND, "--emit=slurm", *common, *small, *flags]
    return subprocess.check_output(command, cwd=folder, text=True)


@needs_slurm
@needs_horovod
@pytest.mark.slow
def test_a_job_trains_to_its_end_and_leaves_nothing_but_its_folder(slurm):
    """With mpirun, as if Slurm lacked PMIx, and with special characters in the folder's name."""
    logdir = slurm.folder / "a 'b"
    script = _script(
        slurm.folder, f"--logdir={logdir}", "--total_environment_frames=30000", evaluator=True
    )
    job = slurm.submit(script, LEARNERS_BY="mpirun")
    until(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), 180)
    printed = slurm.printed(job)
    assert slurm.state(job) == "COMPLETED", printed
    assert re.search(r"finished: reached 30,000 frames; .*results: .*a 'b\n", printed)
    start = json.loads((logdir / "starts.jsonl").read_text())
    assert len(set(start["learners"])) == 2
    for number in range(2):
        assert "[actor " in (logdir / f"actor-{number}.log").read_text()
    assert "[evaluator] " in (logdir / "evaluator-0.log").read_text()
    assert not (logdir / "slurm").exists(), "the token with it"
    until(lambda: set(slurm.processes()) <= slurm.own, 40)


@needs_slurm
@needs_horovod
@pytest.mark.slow
def test_a_job_whose_time_is_over_saves_and_goes_on_when_slurm_starts_it_again(slurm):
    script = _script(slurm.folder, "--total_environment_frames=1e9")
    job = slurm.submit(script, "--time=20", "--signal=B:USR1@60")
    logdir = slurm.folder / "runs" / f"impala-{job}"

    def frames():
        with contextlib.suppress(OSError, IndexError, ValueError):
            return json.loads((logdir / "metrics.jsonl").read_text().splitlines()[-1])["frames"]
        return 0

    until(lambda: frames() > 5000, 120)
    token = logdir / "slurm" / "token"
    first = token.read_text()
    assert token.stat().st_mode & 0o777 == 0o600
    assert first not in slurm.printed(job)
    slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    until(lambda: "saved, since this job's time is over" in slurm.printed(job), 150)
    slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=20")
    saved = frames()
    assert "finished: a stop was requested" in slurm.printed(job)

    starts = logdir / "starts.jsonl"

    def again():
        # Slurm checks such jobs only when a job changes, and nothing else changes in this test.
        slurm.ask("scontrol", "update", f"JobId={job}", "Comment=look")
        return len(starts.read_text().splitlines()) == 2

    until(again, 120)
    assert json.loads(starts.read_text().splitlines()[1])["frames"] == saved
    until(lambda: frames() > saved, 60)
    assert token.read_text() != first

    pmix = "pmix" in slurm.ask("srun", "--mpi=list")
    slurm.ask("scancel", *([] if pmix else ["--batch", "--signal=TERM"]), job)
    until(lambda: slurm.state(job) in ("CANCELLED", "COMPLETED"), 60)
    until(lambda: not token.exists(), 40)
    assert re.search(
        r"finished: (stopped by SIGTERM|a stop was requested)", slurm.printed(job)[-1000:]
    )
    assert f"after {frames():,.0f} frames" in slurm.printed(job)
    until(lambda: set(slurm.processes()) <= slurm.own, 40)


@needs_slurm
@needs_horovod
@pytest.mark.slow
def test_two_learners_and_their_actors_share_one_node(slurm):
    rows = ["job,ip,tf_port,count,memory", *(f"learner,here,{free_port()},,2Gi" for _ in range(2))]
    (slurm.folder / "workers.csv").write_text("\n".join([*rows, "actor,here,,2,1Gi"]))
    flags = ("--level_name=catch", "--batch_size=4", "--total_environment_frames=20000")
    command = [*FRONTEND, "--emit=slurm", "--workers_csv_path=workers.csv", "--logdir=run", *flags]
    script = slurm.folder / "job.sh"
    script.write_text(subprocess.check_output(command, cwd=slurm.folder, text=True))
    asked = ("sbatch", "--parsable", "--output=out", "--cpus-per-task=2", str(script))
    job = slurm.ask(*asked, LEARNERS_BY="mpirun").strip()
    until(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), 300)
    printed = (slurm.folder / "out").read_text()
    assert slurm.state(job) == "COMPLETED", printed
    assert "finished: reached 20,000 frames" in printed
    assert "NumNodes=1 " in slurm.ask("scontrol", "show", "job", job)
    start = json.loads((slurm.folder / "run" / "starts.jsonl").read_text())
    assert len(set(start["learners"])) == 2
    until(lambda: set(slurm.processes()) <= slurm.own, 40)


@needs_slurm
@pytest.mark.slow
def test_the_jobs_of_an_experiment_run_on_a_node_each_and_survive_the_end_of_their_time(slurm):
    sweep = """level_name = "catch"\ntotal_environment_frames = 200000
    [axes]\nseed = [1, 2]\n[needs]\nactors = 2\n"""
    (slurm.folder / "sweep.toml").write_text(sweep)
    command = [*FRONTEND, "--emit=slurm", "--experiment=sweep.toml", "--batch_size=4"]
    script = slurm.folder / "sweep.sbatch"
    script.write_text(subprocess.check_output(command, cwd=slurm.folder, text=True))
    asked = ("sbatch", "--parsable", "--output=%a.out", "--cpus-per-task=4", str(script))
    job = slurm.ask(*asked).strip()
    folder = slurm.folder / "runs" / "sweep"

    def frames(number):
        path = folder / "trials" / f"{number:03d}" / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[-1])["frames"] if lines else 0

    def states():
        found = map(json.loads, (folder / "experiment.jsonl").read_text().splitlines())
        return {row["trial"]: row for row in found if row["event"] == "ended"}

    until(lambda: frames(0) > 5000, 300)
    slurm.ask("scancel", "--batch", "--signal=USR1", f"{job}_0")  # as Slurm does before the end
    until(lambda: "saved, since this job's time is over" in slurm.printed("0"), 120)
    assert 0 not in states()

    def ended():
        slurm.ask("scontrol", "update", f"JobId={job}_0", "Comment=look")
        return states().keys() == {0, 1}

    until(ended, 400)
    assert "resumed at " in slurm.printed("0")
    for number in (0, 1):
        assert states()[number]["frames"] >= 200000
        assert "finished: reached 200,000 frames" in slurm.printed(str(number))
        log = folder / "trials" / f"{number:03d}" / "actor-1.log"
        assert "[actor 1] " in log.read_text()
    until(lambda: set(slurm.processes()) <= slurm.own, 40)
