"""Which files of a run on other hosts are copied to the frontend's machine."""

from pathlib import Path

from launcher.follow.connect import mirrored_files
from launcher.supervise.run_registry import ProcessEntry, Record


def _record(shared=False):
    places = {"actor-0": "cpu", "actor-1": "cpu", "actor-2": ""}
    processes = [
        ProcessEntry("learners", "learner", "gpu", "gpu", log="/there/learners.log"),
        *(ProcessEntry(name, "actor", at, at, log=f"/x/{name}.log") for name, at in places.items()),
    ]
    return Record("n", "1", 0.0, "boot", "/here", "", processes, {}, [], 3, shared)


def test_what_learners_write_and_the_log_that_is_asked_for_are_copied():
    rows = ("learners.log", "metrics.jsonl", "hosts.jsonl")
    learners = {f"/there/{name}": Path(f"/here/{name}") for name in rows}
    assert mirrored_files(_record()) == {"gpu": learners}
    asked = {"cpu": {"/x/actor-1.log": Path("/here/actor-1.log")}}
    assert mirrored_files(_record(), "actor-1") == {"gpu": learners} | asked


def test_a_shared_folder_is_not_copied_onto_itself():
    assert mirrored_files(_record(shared=True)) == {}
