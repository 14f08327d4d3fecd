"""The processes of a manifest, run here as Kubernetes would run them."""

import json
import subprocess
import sys
import time

import pytest
import yaml
from cluster import FRONTEND
from hosts import why_not
from kubelet import running
from processes import ROOT, needs_horovod

pytestmark = [
    needs_horovod,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


def _emit(folder, engine, *flags):
    """Return the objects of a run with two learners and two actors, and the content of Secrets."""
    where = f"{ROOT},{sys.executable}"
    rows = ["job,ip,count,workdir,python", f"learner,a,,{where}", f"learner,b,,{where}"]
    (folder / "workers.csv").write_text("\n".join([*rows, f"actor,c,2,{where}"]))
    text = subprocess.check_output(
        [
            *(
                *FRONTEND,
                f"--emit={engine}",
                "--workers_csv_path=workers.csv",
                "--level_name=catch",
            ),
            *("--container_image=team/rl:1", "--volume_claim=runs", "--tmux_sess=try"),
            *(
                "--batch_size=8",
                "--unroll_length=20",
                "--learning_rate=0.0008",
                f"--logdir={folder}/runs/try",
                *flags,
            ),
        ],
        cwd=folder,
        text=True,
    )
    files = (folder / "try-token").iterdir()
    secrets = {"try-token": {file.name: file.read_text() for file in files}}
    (folder / "runs").mkdir()
    return list(yaml.safe_load_all(text)), secrets, {"runs": folder / "runs"}


def _rows(folder):
    """Return the run's rows so far."""
    path = folder / "runs" / "try" / "metrics.jsonl"
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def _frames(folder):
    return max((row.get("frames", 0) for row in _rows(folder)), default=0)


def test_a_jobset_trains_loses_an_actor_and_a_learner_and_ends(tmp_path):
    manifest = _emit(tmp_path, "jobset", "--stop_at_return=0.7", "--save_checkpoint_secs=2")
    with running(*manifest) as cluster:
        learners, host, *actors = cluster.pods.values()
        cluster.until(lambda: _frames(tmp_path) > 3000, 240)
        assert learners.probe()
        assert host.probe()
        assert all(actor.probe() for actor in actors)

        # A node is lost: the actor comes back, and the learners have not stopped.
        actors[1].host.kill_all()
        cluster.until(lambda: "[actor 1]" in actors[1].printed and actors[1].starts == 2, 120)
        assert learners.starts == 1
        # A process hangs: its probe fails, and its container is restarted in the same pod.
        actors[0].hang()
        cluster.until(lambda: not actors[0].probe(), 60)
        actors[0].process.kill_all()
        cluster.until(lambda: actors[0].restarts == 1 and "[actor 0]" in actors[0].printed, 120)

        # A learner is lost: all begin again at the last checkpoint; the actors stay.
        host.host.kill_all()
        cluster.until(lambda: learners.starts == 2, 120)
        starts = tmp_path / "runs" / "try" / "starts.jsonl"
        cluster.until(lambda: len(starts.read_text().splitlines()) == 2, 240)
        assert json.loads(starts.read_text().splitlines()[1])["frames"] > 0, "from a checkpoint"
        assert (host.starts, actors[1].starts, actors[0].restarts) == (2, 2, 1)

        cluster.until(lambda: cluster.succeeded, 600)
        row = _rows(tmp_path)[-1]
        assert row["episode_return"] >= 0.7, "catch is between -1 and 1"
        assert min(row["steps/learner0"], row["steps/learner1"]) > 0
        began = time.monotonic()
        for pod in (host, *actors):
            pod.delete()
        assert time.monotonic() - began < 60, "no hook waits for learners that have ended"


def test_an_mpijob_saves_before_its_pods_are_deleted_and_ends_when_created_again(tmp_path):
    """The operator's variables, which are for Open MPI 4, are there; no pod has an sshd."""
    with running(*_emit(tmp_path, "mpijob", "--total_environment_frames=60000")) as cluster:
        launcher, *workers = list(cluster.pods.values())[:3]
        cluster.until(lambda: _frames(tmp_path) > 3000, 240)
        assert all(worker.probe() for worker in workers)
        for pod in (launcher, *workers):
            pod.delete()
        assert "finished: a stop was requested" in launcher.printed
        assert launcher.code == 143, "the controller makes another pod"
        saved = _frames(tmp_path)
        for pod in (launcher, *workers):
            pod.start()
        cluster.until(lambda: cluster.succeeded, 600)
        starts = (tmp_path / "runs" / "try" / "starts.jsonl").read_text().splitlines()
        assert json.loads(starts[-1])["frames"] == saved
        assert _frames(tmp_path) >= 60000
