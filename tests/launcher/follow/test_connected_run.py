"""The end of a run, with stand-ins for its processes and hosts."""

import time
from types import SimpleNamespace

import pytest
from run_states import make_state

from launcher.follow import connected_run
from launcher.follow.connected_run import ConnectedRun, add_pending_stop
from launcher.supervise.run_registry import Record, Run, boot_id


class EndedRun:
    """A run whose learners have ended, and whose evaluator is testing; it records the requests."""

    folder, record, name = "", SimpleNamespace(host_id_of=lambda name: ""), "impala"

    def __init__(self):
        self.asked, self.looks = [], 0

    def states(self):
        self.looks += 1
        is_over = "now" in self.asked or self.looks > 30
        state = "stopped" if is_over else "ending"
        return {"evaluator": make_state("evaluator", state, "evaluator")}

    def request_stop(self, mode, name=""):
        self.asked.append(mode)


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_evaluator_is_waited_for_until_ctrl_c(monkeypatch, interrupted):
    monkeypatch.setattr(connected_run, "_END_SECONDS", 0.0)
    monkeypatch.setattr(connected_run, "_MESSAGE_SECONDS", 0.2)
    ended, said = EndedRun(), []
    hosts = SimpleNamespace(remote_nodes={}, for_each=lambda function, host_ids: {})
    ConnectedRun(ended, hosts, say=said.append)._wait_for_end(lambda: interrupted)
    assert ended.asked == (["now"] if interrupted else [])
    assert ended.states()["evaluator"].state == "stopped"
    assert interrupted or "evaluator" in said[0]


def test_a_host_that_the_runs_controller_could_not_reach_either_is_named_by_both(
    tmp_path, monkeypatch
):
    """A controller on this machine and `--stop` end the run at the same time."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = Run("impala")
    run.folder.mkdir(parents=True)
    rest = (time.time(), boot_id(), str(tmp_path), "", [], {}, [], 1)
    run.write_record(Record("impala", "first", *rest, targets={"a": ["a"], "b": ["b"]}))
    add_pending_stop("b", "first")
    control = ConnectedRun(run, SimpleNamespace(remote_nodes={}))
    assert control.record_pending_stops(run.record) == ["b"]
