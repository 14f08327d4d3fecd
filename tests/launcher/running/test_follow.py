"""A frontend that follows a run ends it once no actor is left."""

from types import SimpleNamespace

import pytest

from launcher.running import follow


@pytest.mark.parametrize(
    ("states", "ends"),
    [
        (["failed", "failed"], True),
        (["failed", "stopped"], True),  # --apply has removed the second one
        (["failed", "waits"], False),
        (["failed", "lost"], False),
        (["stopped"], False),
        ([], False),
    ],
)
def test_a_run_ends_some_seconds_after_the_last_of_its_actors_failed(
    tmp_path, monkeypatch, states, ends
):
    clock, requests, said = [100.0], [], []
    monkeypatch.setattr(follow.time, "monotonic", lambda: clock[0])
    control = SimpleNamespace(run=None, request_stop=requests.append)
    follower = follow.Follower(control, tmp_path, said.append)
    learners = {"learners": {"job": "learner", "state": "running"}}
    actors = {str(i): {"job": "actor", "state": state} for i, state in enumerate(states)}
    for seconds, count in ((0, 0), (4, 0), (2, 1), (9, 1)):
        clock[0] += seconds
        follower._end_without_actors(learners | actors)
        assert requests == ["save"] * (count if ends else 0)
        assert len(said) == len(requests)
