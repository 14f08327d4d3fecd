"""A stand-in for a run of which only the states are known."""

from types import SimpleNamespace

from launcher.supervise.process_state import State
from launcher.supervise.run_registry import Record, Run, boot_id


class ShownRun(SimpleNamespace):
    """A run with a function `states`, and whatever else a test gives it."""

    state_of = Run.state_of


def make_state(name="learners", state="running", job="learner", host="h", **fields):
    """Return the state of a process."""
    return State(name, job, host, state, **fields)


def record_foreground(state_folder, logdir, names=("learners",), began=1.0):
    """Record a run as an experiment.py in the foreground does, and return it."""
    state_folder.mkdir(exist_ok=True)
    jobs = {name: "learner" if name == "learners" else "actor" for name in names}
    entries = [{"name": n, "job": job, "host": "localhost", "log": ""} for n, job in jobs.items()]
    run = Run(state_folder.name, state_folder.parent)
    rest = (began, boot_id(), str(logdir), "", entries, {}, [], 0)
    run.write_record(Record(logdir.name, "", *rest))
    return run
