"""Orders to start processes again: the copied states of those that were not started are kept."""

from types import SimpleNamespace

from launcher.node.run_registry import Run
from launcher.node.task import read_json, write_json
from launcher.running.followed_run import FollowedRun
from launcher.running.ordered_starts import OrderedStarts


def test_only_the_states_of_what_was_started_again_are_forgotten(tmp_path):
    run, said = Run("impala", tmp_path), []
    names = {"actor-0", "actor-1", "actor-2"}
    for name in names:
        (run.folder / name).mkdir(parents=True)
        write_json(run.folder / name / "state.json", {"state": "lost"})

    class Hosts:
        def call(self, host_id, op, names, timeout):
            write_json(run.folder / "actor-1" / "state.json", {"state": "running"})
            return ["actor-0", "actor-1"]

    control = SimpleNamespace(run=run, hosts=Hosts())
    orders = OrderedStarts(run, Hosts())
    followed = FollowedRun(control, None, None, [], None, 1.0, said.append, orders)
    record = SimpleNamespace(host_id_of=lambda name: "there")
    assert sorted(followed.restart(names, record)) == ["actor-0", "actor-1"]
    states = {name: read_json(run.folder / name / "state.json") for name in names}
    assert states == {
        "actor-0": {},  # of the process before
        "actor-1": {"state": "running"},  # the new process has reported already
        "actor-2": {"state": "lost"},  # a user may have stopped it
    }
    assert len(said) == 1
    assert said[0].startswith("not started again: actor-2: ")
