"""`--stop`, whose request a host may miss; `test_other_hosts` stops real runs."""

from types import SimpleNamespace

from launcher.commands import manage


def test_a_stop_is_requested_again_until_the_learners_have_ended(tmp_path, monkeypatch):
    """A host that has just been connected to may not have taken the first request."""
    monkeypatch.setattr(manage, "REPEAT_SECONDS", 0.0)
    requests = []
    control = SimpleNamespace(
        hosts=SimpleNamespace(remote_nodes={"there": None}), request_stop=requests.append
    )

    def states():
        return {"learners": {"state": "ended" if len(requests) == 2 else "running"}}

    manage._wait_for_learners(SimpleNamespace(states=states), control, timeout=5.0)
    assert requests == ["save", "save"]
