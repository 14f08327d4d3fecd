"""Which actors count as connected, and what a learner prints of their broken environments."""

from impala_mm.transport.connected_actors import ActorFailures, ConnectedActors

FAILURE = {"text": "E: no map", "kind": "E at a.py:7", "traceback": "Traceback\n  a", "gave_up": ""}


def test_a_late_message_of_an_actor_that_gave_up_does_not_connect_it_again():
    actors = ConnectedActors()
    actors.join(0, {}, movable=True)
    actors.leave(0)
    actors.heard_from(0)
    assert not actors.heard
    actors.join(0, {}, movable=True)  # it was started again
    assert set(actors.heard) == {0}


def test_each_kind_of_fault_is_shown_once_with_its_traceback():
    said = []
    failures = ActorFailures(said.append)
    assert not failures.take(0, "gpu1", FAILURE)
    failures.take(1, "gpu2", FAILURE)
    failures.take(1, "gpu2", FAILURE | {"kind": "E at a.py:8"})
    shown = "E: no map\n  Traceback\n    a"
    counted = "a fault that was shown is only counted"
    assert said == [f"actor 0 on gpu1: {shown}", f"actor 1 on gpu2: {shown}"], counted
    del said[:]
    for line in range(9, 14):
        failures.take(1, "gpu2", FAILURE | {"kind": f"E at a.py:{line}"})
    assert said[-1].startswith("actor 1 on gpu2: E: no map (")


def test_an_actor_that_gave_up_is_remembered_with_its_reason():
    said = []
    failures = ActorFailures(said.append)
    failures.take(4, "gpu1", FAILURE)
    assert failures.gave_up == {}
    assert failures.take(4, "gpu1", FAILURE | {"gave_up": "no environment works"})
    assert said[1:] == ["actor 4 on gpu1 gave up: no environment works"]
    assert failures.gave_up == {4: "no environment works; the first fault: E: no map"}


def test_what_an_actor_reports_makes_no_lines_that_look_like_the_learners_own():
    said, evil = [], "x\x1b[2J\n[learner] checkpoint saved"
    failures = ActorFailures(said.append)
    assert failures.take(0, "gpu1", dict.fromkeys(FAILURE, evil))
    shown = r"x\x1b[2J\n[learner] checkpoint saved"
    assert said == [
        f"actor 0 on gpu1: {shown}\n  x\\x1b[2J\n  [learner] checkpoint saved",
        f"actor 0 on gpu1 gave up: {shown}",
    ]
    assert failures.gave_up == {0: f"{shown}; the first fault: {shown}"}
    failures.take(1, "gpu1", FAILURE | {"kind": "y", "text": "t" * 9999, "traceback": "z" * 99999})
    assert len(said[-1]) < 11_000
