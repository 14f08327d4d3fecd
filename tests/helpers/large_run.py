"""A run of many processes as its supervisors would leave it in files: nothing is started.

The tests of the dashboard read it, and measure by it what a dashboard costs.
"""

import json
import math
import os
import time
from pathlib import Path

from launcher.supervise.procfs import start_time
from launcher.supervise.run_registry import Record, Run, boot_id

ME = [os.getpid(), start_time(os.getpid())]
ROW_SECONDS = 2.0
_VERDICT = (
    "bottleneck: actors (the learner waits 22% of its time); about 380 actors needed (299 now)"
)


class LargeRun:
    """A run with one process of all learners, and actors on several hosts."""

    def __init__(self, name: str, logdir: Path, actors: int = 299, hosts: int = 6):
        self.run, self.logdir = Run(name), logdir
        self.names = ["learners", *(f"actor-{i}" for i in range(actors))]
        self._hosts = ["gpu1", *(f"node{i}" for i in range(1, hosts))]
        self.updates, self.born = 0, time.time() - 3600
        self._changes: dict[str, dict] = {}  # by process, as `write_state` was told
        self.run.create_state()
        logdir.mkdir(parents=True, exist_ok=True)
        processes = [
            {
                "name": name,
                "job": self._job(name),
                "host": self.host_of(name),
                "log": self._log(name),
            }
            for name in self.names
        ]
        self.run.write_record(
            Record(
                name, "1", self.born, boot_id(), str(logdir), "", processes, {}, [], actors
            )
        )  # fmt: skip
        settings = {"level_name": "PongNoFrameskip-v4", "algorithm": "impala", "seed": 1}
        (logdir / "settings.json").write_text(json.dumps(settings))
        start = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.born))}
        (logdir / "starts.jsonl").write_text(json.dumps(start | {"frames": 0.0}) + "\n")
        for each in self.names:
            (self.run.folder / each).mkdir()
            self.write_state(each)

    def _job(self, name: str) -> str:
        return "learner" if name == "learners" else "actor"

    def _log(self, name: str) -> str:
        return str(self.logdir / f"{name}.log")

    def host_of(self, name: str) -> str:
        """Return the host of a process."""
        number = 0 if name == "learners" else int(name.removeprefix("actor-"))
        return self._hosts[number % len(self._hosts)]

    def write_state(self, name: str, **changes) -> None:
        """Write the state of a process that is running, with these changes from now on."""
        changes = self._changes[name] = self._changes.get(name, {}) | changes
        number = 0 if name == "learners" else int(name.removeprefix("actor-"))
        state = {
            "name": name, "job": self._job(name), "host": self.host_of(name),
            "log": self._log(name), "state": "running", "supervisor": ME, "process": ME,
            "restarts": 0, "failure": None, "since": self.born, "cpu": 88 + number % 12,
            "memory": 410 + number % 50, "frames_per_second": 95.3 + number % 7, "silent": 0.4,
            "last": f"[{name}] plays with version {self.updates}", "time": time.time(),
        } | changes  # fmt: skip
        path = self.run.folder / name / "state.json"
        work = path.with_suffix(".part")
        work.write_text(json.dumps(state))
        work.replace(path)

    def row(self, index: int) -> dict[str, float | str]:
        """Return the row of metrics with this number."""
        progress = 1 - math.exp(-index / 600)
        wobble = math.sin(index * 0.7) * 0.4
        row: dict[str, float | str] = {
            "frames": 56000.0 * index, "steps": 14000 * index, "updates": 22 * index,
            "seconds": ROW_SECONDS * index, "frames_per_second": 28000 + 900 * wobble,
            "steps_per_second": 7000 + 225 * wobble, "updates_per_second": 11.0,
            "episode_return": -20.7 + 41 * progress + wobble, "episode_length": 900.0 + index % 9,
            "games": 100, "shaped_return": -20.7 + 41 * progress, "policy_lag": 9 + 2 * wobble,
            "wait_share": 0.22 + 0.02 * wobble, "exchange_share": 0.0, "train_share": 0.74,
            "rest_share": 0.04, "queue_fill": 0.31 + 0.1 * wobble, "actor/acting_share": 0.45,
            "actor/stepping_share": 0.44, "actor/waiting_share": 0.03, "actors": 299,
            "actors_elsewhere": 249, "idle_cores": 0.4, "unrolls_dropped": 0,
            "loss_per_step/total": 0.3 * (1 - progress) + 0.02 * wobble,
            "loss_per_step/policy": 0.01 * wobble, "loss_per_step/baseline": 0.2 * (1 - progress),
            "loss_per_step/entropy": -0.9 + 0.4 * progress, "grad_norm": 3 + wobble,
            "learning_rate": 0.0006 * (1 - index / 1e5), "off_policyness": 0.002,
        }  # fmt: skip
        return row | {"verdict": _VERDICT}

    def write_rows(self, begin: int, end: int) -> None:
        """Append rows of metrics."""
        with (self.logdir / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(self.row(i)) + "\n" for i in range(begin, end))

    def hosts_row(self, index: int) -> dict[str, float]:
        """Return the row of hosts.jsonl with this number."""
        row = {"time": self.born + 10 * index, "frames": 280000.0 * index, "seconds": 10.0 * index}
        for number, host in enumerate(self._hosts):
            row[f"cores/{host}"] = 40 + 3 * math.sin(index * 0.3 + number)
            row[f"memory/{host}"] = 20000.0 + 500 * number + index
        busy = {"gpu/gpu1/0": 71.0 + index % 5, "gpu_memory/gpu1/0": 6100.0}
        return row | busy

    def write_hosts(self, begin: int, end: int) -> None:
        """Append rows of what hosts use."""
        with (self.logdir / "hosts.jsonl").open("a") as file:
            file.writelines(json.dumps(self.hosts_row(i)) + "\n" for i in range(begin, end))

    def advance(self) -> None:
        """Change all that changes within two seconds of a run: states, a row, a line of the log."""
        self.updates += 22
        for name in self.names:
            self.write_state(name)
