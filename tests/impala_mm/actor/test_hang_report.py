"""An environment that hangs: the place in its code is logged and reported, once."""

import os
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
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


@pytest.mark.slow
def test_the_place_of_a_hang_in_a_worker_process_is_reported_and_closing_ends_it():
    reported, alive = [], Heartbeat()
    environments = make_environments("tests.helpers.crashing:Hangs", 3, 1, workers=2)
    environments.reset()
    pids = [worker.pid for worker in environments._workers]
    step = threading.Thread(target=lambda: environments.step(np.array([1, 1, 3])))
    step.start()
    until(lambda: [worker.pid for worker in environments.busy_workers()] == pids[1:])
    watch_for_hangs(alive, reported.append, lambda line: None, seconds=0.2)
    until(lambda: reported)
    assert f"the worker process {pids[1]} does not answer" in reported[0].text
    assert re.search(r'crashing.py", line \d+ in _break$', reported[0].traceback)
    assert "connection.py" not in reported[0].traceback
    os.kill(pids[1], signal.SIGKILL)
    step.join()
    assert "was killed by SIGKILL" in environments.faults[-1].text
    environments.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
