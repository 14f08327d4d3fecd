"""The part of a run on a machine that a frontend reaches by several names."""

import stat
import time

import pytest

from impala_mm.runtime import run_token
from impala_mm.runtime.certificates import without_learner
from launcher.supervise import local_node
from launcher.supervise.json_files import write_json
from launcher.supervise.local_node import LocalNode
from launcher.supervise.process_state import State
from launcher.supervise.run_registry import ProcessEntry, Record, Run

_RECORD = {
    **{"name": "night", "id": "start", "time": time.time(), "boot": "", "logdir": "/l"},
    **{"socket": "", "processes": [], "flags": {}, "learners": [], "next_actor": 0},
    "started_from": "laptop",
}


@pytest.mark.parametrize("whole_first", [False, True])
def test_a_host_of_two_names_gets_the_learners_part_whichever_begins_first(
    tmp_path, monkeypatch, whole_first
):
    monkeypatch.setattr(local_node.tmux, "default_socket", lambda: "")
    monkeypatch.setattr(local_node, "remove_leftovers", lambda folder: None)
    whole = run_token.make()
    tokens = [without_learner(whole), whole]
    for token in reversed(tokens) if whole_first else tokens:
        LocalNode(Run("night", tmp_path)).begin_run(_RECORD, token, [])
    file = tmp_path / "night" / "token"
    assert file.read_text() == whole
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(file.parent.glob("token-*"))


def test_a_machine_reports_which_processes_were_themselves_requested_to_stop(tmp_path):
    run = Run("night", tmp_path)
    names = ["actor-0", "actor-1"]
    entries = [ProcessEntry(name, "actor", "h") for name in names]
    for name in names:
        (run.folder / name).mkdir(parents=True)
        write_json(run.folder / name / "state.json", State(name, "actor", "h", "ended").to_json())
    run.write_record(Record(**_RECORD | {"processes": entries}))
    node = LocalNode(run)
    node.request_stop("ended")
    node.request_stop("save", "actor-1")
    assert [state["is_to_stop"] for state in node.states().values()] == [False, True]
