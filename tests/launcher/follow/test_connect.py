"""Which files of a run on other hosts are copied to the frontend's machine."""

from pathlib import Path

from launcher.follow.connect import mirrored_files
from launcher.supervise.run_registry import Record


def _record(shared=False):
    learners = {"name": "learners", "place": "gpu", "log": "/there/learners.log"}
    actors = [{"name": f"actor-{i}", "place": "cpu", "log": f"/x/actor-{i}.log"} for i in range(2)]
    here = {"name": "actor-2", "place": "", "log": "/here/actor-2.log"}
    processes = [learners, *actors, here]
    return Record("n", "1", 0.0, "boot", "/here", "", processes, {}, [], 3, shared)


def test_what_learners_write_and_the_log_that_is_asked_for_are_copied():
    rows = ("learners.log", "metrics.jsonl", "hosts.jsonl")
    learners = {f"/there/{name}": Path(f"/here/{name}") for name in rows}
    assert mirrored_files(_record()) == {"gpu": learners}
    asked = {"cpu": {"/x/actor-1.log": Path("/here/actor-1.log")}}
    assert mirrored_files(_record(), "actor-1") == {"gpu": learners} | asked


def test_a_shared_folder_is_not_copied_onto_itself():
    assert mirrored_files(_record(shared=True)) == {}
