"""A stand-in for experiment.py, for tests that do not test its processes themselves.

It is the `python` of a row, called with experiment.py's path and flags. It prints its flags, its
folder and its environment, and runs until a signal stops it; SIGUSR1 stands for "save and stop". A
learner writes one row of metrics, and reports port 8001, 8002 or so on instead of port 0; with
TOLD=late in the environment, only once LOGDIR/go exists. With TOLD=fail, an actor fails, and with
TOLD=refuse a learner. With TOLD=trial, a learner goes on where its rows end, with a return that is
its learning rate times its frames, until it has all frames; while LOGDIR/hold exists it waits. With
TOLD=member, it has checkpoints, too, and goes on from the newest one.
"""

import hashlib
import json
import os
import signal
import sys
import time

flags = dict(part.removeprefix("--").split("=", 1) for part in sys.argv[2:])
print("told", json.dumps({"flags": flags, "cwd": os.getcwd(), "environment": dict(os.environ)}))
job = flags["job_name"]
if os.environ.get("TOLD") == "fail" and job == "actor":
    time.sleep(1)  # a frontend sees each failure before the next one
    raise ValueError("an actor that fails")
if os.environ.get("TOLD") == "refuse" and job == "learner":
    sys.exit("error: the learner cannot listen")


addresses = []  # of all learners, once they are known


def report(**more):
    """Report to the supervisor as the learner of rank 0 does."""
    if path := os.environ.get("IMPALA_MM_LEARNER_HOSTS"):
        with open(path, "w") as file:
            json.dump({"learner_hosts": addresses} | more, file)


def end(number, _):
    print("got", signal.Signals(number).name)
    if job == "learner" and number == signal.SIGUSR1:
        report(ended=True)
    sys.exit(0 if number == signal.SIGUSR1 else 143)


for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, end)
if job == "learner":
    print("reporting")
    while os.environ.get("TOLD") == "late" and not os.path.exists(f"{flags['logdir']}/go"):
        time.sleep(0.05)
    given = flags["learner_hosts"].split(",")
    addresses = [address.replace(":0", f":{8001 + i}") for i, address in enumerate(given)]
    report()
    row = {"frames": 1000, "frames_per_second": 10, "verdict": "all is well", "policy_lag": 1.5}
    if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        with open(os.path.join(flags["logdir"], "metrics.jsonl"), "a") as file:
            file.write(json.dumps(row) + "\n")
print("up")
saves = os.environ.get("TOLD") == "member"
checkpoints = os.path.join(flags["logdir"], "checkpoints")


def save(frames):
    """Write a checkpoint that names the run which has written it."""
    content = f"of {os.path.basename(flags['logdir'])}".encode()
    files = {"variables.data": [len(content), hashlib.sha256(content).hexdigest()]}
    texts = ("learners", "updates", "steps", "frames", "seconds", "milestone", "episode_return")
    about = dict.fromkeys(texts, 1) | {"frames": frames, "milestone": False, "files": files}
    about |= {"settings": {}, "made_of": {}, "versions": {}}
    work = os.path.join(checkpoints, "saving")
    os.makedirs(work)
    for name, text in (("variables.data", content), ("about.json", json.dumps(about).encode())):
        with open(os.path.join(work, name), "wb") as file:
            file.write(text)
    os.rename(work, os.path.join(checkpoints, f"{frames:010d}"))


if job == "learner" and (saves or os.environ.get("TOLD") == "trial"):
    path = os.path.join(flags["logdir"], "metrics.jsonl")
    with open(path) as file:
        frames = max(json.loads(line)["frames"] for line in file)
    if saves:
        os.makedirs(checkpoints, exist_ok=True)
        names = [name for name in os.listdir(checkpoints) if name.isdigit()]
        frames = max(map(int, names), default=frames)
        rate = {"learning_rate": float(flags["learning_rate"]), "learning_rate_end": 0.0}
        with open(os.path.join(flags["logdir"], "settings.json"), "w") as file:
            json.dump(rate | {"learning_rate_schedule": "constant"}, file)
    while frames < float(flags["total_environment_frames"]):
        time.sleep(0.1)
        if not os.path.exists(os.path.join(flags["logdir"], "hold")):
            frames += 100
            score = frames * float(flags["learning_rate"])
            row = {"frames": frames, "seconds": frames / 1e3, "episode_return": score}
            if saves:
                row["learning_rate"] = float(flags["learning_rate"])
                if frames % 2000 == 0:
                    save(frames)
            with open(path, "a") as file:
                file.write(json.dumps(row) + "\n")
    report(ended=True)
    sys.exit(0)
while True:
    time.sleep(0.1)
