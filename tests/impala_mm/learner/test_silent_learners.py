"""Learners that do not answer while the reports of all fail to come: rank 0 names them."""

import threading
import time

import pytest
from processes import free_port
from supervising import until

from impala_mm.learner.learner_reports import SilentLearners
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.server import Server


@pytest.fixture
def addresses():
    """Return the addresses of three learners, of which the second does not exist."""
    found = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    servers = [
        Server(each, HeldAddress(each), "token", {"run_id": "r"}, 1, lambda _: None)
        for each in (found[0], found[2])
    ]
    yield found
    for thread in threading.enumerate():
        if thread.name == "silence":
            thread.join()  # a call to a server of the same process that closes ends the process
    for server in servers:
        server.close()


def test_only_learners_that_do_not_answer_are_named_and_only_while_reports_are_late(addresses):
    silent = SilentLearners(addresses, 0, "token")
    now = time.monotonic()
    assert silent.describe(now - 5) == silent.describe(float("inf")) == ""
    assert silent._calls is None, "nobody is called while reports come"
    assert silent.describe(now - 34) == "", "it does not wait for the calls"
    said = until(lambda: silent.describe(now - 34))
    assert said.startswith(f"learner 1 ({addresses[1]} has not answered for 3")
    assert silent.describe(time.monotonic()) == ""
    assert silent.describe(now - 34) == "", "a later silence is not that of the last calls"


def test_several_silent_learners_are_named_together(addresses):
    silent = SilentLearners([addresses[0], addresses[1], addresses[1]], 0, "token")
    said = until(lambda: silent.describe(time.monotonic() - 60))
    assert said.startswith(f"learners 1 and 2 ({addresses[1]} and {addresses[1]} have not answered")


def test_a_learner_that_refuses_the_caller_has_answered(addresses):
    silent = SilentLearners([addresses[0], addresses[2]], 0, "another token")
    silent.describe(time.monotonic() - 60)
    until(lambda: not silent._calls.is_alive())
    assert silent.describe(time.monotonic() - 60) == ""
