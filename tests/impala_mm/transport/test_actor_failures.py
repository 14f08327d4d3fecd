"""What a learner prints of its actors' broken environments."""

from impala_mm.transport.actor_failures import ActorFailures

FAILURE = {"text": "E: no map", "kind": "E at a.py:7", "traceback": "Traceback\n  a", "gave_up": ""}


def test_each_kind_of_fault_is_shown_once_with_its_traceback():
    said = []
    failures = ActorFailures(said.append)
    assert not failures.take(0, "gpu1", FAILURE)
    failures.take(1, "gpu2", FAILURE)
    failures.take(1, "gpu2", FAILURE | {"kind": "E at a.py:8"})
    assert said == [
        "actor 0 on gpu1: E: no map\n  Traceback\n    a",
        "actor 1 on gpu2: E: no map (its traceback is in the actor's log)",
        "actor 1 on gpu2: E: no map\n  Traceback\n    a",
    ]


def test_an_actor_that_gave_up_is_remembered_with_its_reason():
    said = []
    failures = ActorFailures(said.append)
    failures.take(4, "gpu1", FAILURE)
    assert failures.gave_up == {}
    assert failures.take(4, "gpu1", FAILURE | {"gave_up": "no environment works"})
    assert said[1:] == ["actor 4 on gpu1 gave up: no environment works"]
    assert failures.gave_up == {4: "no environment works; the first fault: E: no map"}
