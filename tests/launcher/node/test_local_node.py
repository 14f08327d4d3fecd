"""The part of a run on a machine that a frontend reaches by several names."""

import stat
import time

import pytest

from impala_mm.runtime import run_token
from impala_mm.runtime.certificates import without_learner
from launcher.node import local_node
from launcher.node.local_node import PLAN, LocalNode
from launcher.node.run_registry import Run
from launcher.node.task import RANK_BEATS_FOLDER, learner_hosts_of, read_json, write_json

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


def _learners(folder, hosts):
    program = ["experiment.py", f"--learner_hosts={','.join(f'{host}:0' for host in hosts)}"]
    ranks = [["-np", "1", "--host", host, *program] for host in hosts]
    command = ["mpirun", *ranks[0], *[word for rank in ranks[1:] for word in (":", *rank)]]
    return {
        **{"name": "learners", "job": "learner", "host": hosts[0], "environment": {}},
        **{"command": command if len(hosts) > 1 else program, "workdir": "/"},
        **{"folder": str(folder), "log": str(folder / "log"), "log_max_mb": 1.0, "leader": ""},
        **{"lease_secs": None, "rows": "", "has_other_hosts": False, "restarts": 0},
        **{"stall_secs": 0.0, "grace_secs": 1.0},
    }


def test_learners_that_start_without_a_host_keep_the_plan_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(local_node.tmux, "default_socket", lambda: "")
    monkeypatch.setattr(local_node, "remove_leftovers", lambda folder: None)
    started = []
    monkeypatch.setattr(
        local_node.programs,
        "start_supervisor",
        lambda task, before: started.append(read_json(task)),
    )
    node = LocalNode(Run("night", tmp_path))
    node.begin_run(_RECORD, run_token.make(), [])
    plan = node.run.folder / "learners" / PLAN
    for hosts, planned in (("ab", "a:0,b:0"), ("a", "a:8001,b:8002"), ("abc", "a:0,b:0,c:0")):
        task = _learners(node.run.folder, [*hosts])
        node.start_processes([task], [{"name": "learners", "job": "learner", "host": "a"}], True)
        assert started[-1]["command"] == task["command"]
        assert learner_hosts_of(read_json(plan)["command"]) == planned.split(",")
        write_json(plan.with_name("state.json"), {"learner_hosts": ["a:8001", "b:8002"]})


def test_a_heartbeat_that_is_being_written_does_not_hide_the_others(tmp_path):
    node = LocalNode(Run("night", tmp_path))
    assert node.rank_silence() is None
    folder = tmp_path / "night" / RANK_BEATS_FOLDER
    folder.mkdir(parents=True)
    (folder / "beat-1").touch()
    (folder / "beat-1.part").symlink_to(folder / "renamed")  # listed, and gone when asked
    assert 0 <= node.rank_silence() < 5
