"""An environment that hangs: the place in its code is logged and reported, once."""

import threading

import numpy as np
from supervising import until

from impala_mm.actor.failures import watch_for_hangs
from impala_mm.environments.faults import Fault
from impala_mm.environments.make import make_environments
from impala_mm.runtime.heartbeat import Heartbeat
from tests.helpers import broken_levels


def test_the_place_where_an_environment_hangs_is_reported_once(monkeypatch):
    go_on, reported, said = threading.Event(), [], []
    told = threading.Event()
    monkeypatch.setattr(broken_levels.StepHangs, "wait", go_on.wait)

    def tell(fault: Fault) -> None:
        reported.append(fault)
        told.set()

    environments = make_environments("tests.helpers.broken_levels:StepHangs-v0", 1, 1)
    environments.step(np.zeros(1, np.int32))  # it resets the environment
    watch_for_hangs(Heartbeat(), tell, said.append, seconds=0.1)
    assert not told.wait(0.4), "no environment is in a call"
    # It hangs although no heartbeat has come since the checks that found nothing.
    step = threading.Thread(
        target=lambda: environments.step(np.zeros(1, np.int32)), name="step", daemon=True
    )
    step.start()
    try:
        until(told.is_set)
        assert not go_on.wait(0.3)
    finally:
        go_on.set()
    step.join()
    environments.close()
    assert len(reported) == 1
    line = broken_levels.StepHangs.step.__code__.co_firstlineno + 1
    stack = reported[0].traceback
    assert f'File "{broken_levels.__file__}", line {line}, in step\n    self.wait()' in stack
    assert "gym_vector" not in stack
    assert said[0].startswith(f"{reported[0].text}; ")
