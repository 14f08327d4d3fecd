"""Environments in worker processes: the results of a single process, and what a crash costs."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import ROOT
from supervising import until

from impala_mm.environments import nests
from impala_mm.environments.faults import FaultElsewhere, make_fault
from impala_mm.environments.gym_vector import GymVector, blank_step
from impala_mm.environments.make import find_level, make_environments
from impala_mm.environments.worker_vector import WorkerDied, WorkerProcess, map_nest

ENVS = 5
RAISES_AT = 20


@pytest.fixture
def vector():
    """Return a function that makes environments, which are closed in the end."""
    made = []

    def make(level, workers=2, count=ENVS, **options):
        made.append(make_environments(level, count, 7, workers=workers, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _play(envs, steps=40):
    """Return copies of all that some steps return, one of which has a fault."""
    numbers, parts = np.random.default_rng(0), envs.spec.actions.leaves
    steps_seen = [envs.reset()._asdict()]
    steps_seen[0] = [array.copy() for array in nests.flatten(tuple(steps_seen[0].values()))]
    for number in range(steps):
        actions = [numbers.integers(0, 2, (ENVS, *p.shape)).astype(p.policy_dtype) for p in parts]
        if number == RAISES_AT:
            actions[0][3] = 3
        step = envs.step(envs.spec.actions.pack(actions))
        steps_seen.append([array.copy() for array in nests.flatten(tuple(step))])
    return steps_seen, sorted(envs.episodes()), [fault.text for fault in envs.faults]


def _is_alive(pid):
    """Return whether a process runs; one that only waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "level",
    [
        "crashing:Raises",
        *(
            pytest.param(f"acting:{name}-v0", marks=pytest.mark.slow)
            for name in ("Harbour", "Doors", "Stalls")
        ),
    ],
)
def test_results_and_faults_are_those_of_a_single_process(vector, level):
    here, there = (_play(vector(level, workers)) for workers in (0, 2))
    for mine, theirs in zip(here[0], there[0], strict=True):
        assert all(map(np.array_equal, mine, theirs))
    assert here[1:] == there[1:]


@pytest.mark.slow
def test_workers_make_environments_with_arguments_and_wrappers(vector):
    options = {"env_kwargs": '{"length": 6}', "env_wrappers": "making:Plus"}
    envs = vector("making:Walk", **options)
    envs.reset()
    assert envs.step(np.ones(ENVS, np.int32)).reward.tolist() == [2.0] * ENVS
    assert re.fullmatch(r"2 worker processes \(\d+ MB\)", envs.describe())
    for worker in envs._workers:
        assert "tensorflow" not in Path(f"/proc/{worker.pid}/maps").read_text()
    files = [Path(f"/proc/self/fd/{file.fileno()}") for file in envs._files]
    envs.close()
    assert not any(file.is_symlink() for file in files), "the shared memory is freed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "how"),
    [
        ("crashing:Segfaults", "was killed by SIGSEGV"),
        ("crashing:Exits", "ended with exit code 7"),
    ],
)
def test_a_worker_that_crashes_costs_its_environments_until_another_is_started(vector, level, how):
    envs = vector(level)
    envs.reset()
    envs.step(np.ones(ENVS, np.int32))
    step = envs.step(np.array([1, 1, 1, 1, 3]))
    broken = [False, False, False, True, True]
    assert step.fault.tolist() == step.first.tolist() == broken
    assert step.reward.tolist() == [1, 1, 1, 0, 0]
    name = f"environments 3 to 4 of {level}: the worker process {how}"
    assert [(fault.text, fault.environment) for fault in envs.faults] == [(name, 3), (name, 4)]
    if "SEGV" in how:
        assert "in _break" in envs.faults[0].traceback
    step = envs.step(np.ones(ENVS, np.int32))
    assert step.first.tolist() == broken
    assert not step.fault.any()
    assert envs.step(np.ones(ENVS, np.int32)).reward.tolist() == [1] * ENVS


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_requests_to_stop_are_not_for_it(vector):
    envs = vector("crashing:Raises")
    envs.reset()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(envs._workers[0].pid, number)
    assert not envs.step(np.ones(ENVS, np.int32)).fault.any()
    os.kill(envs._workers[0].pid, signal.SIGKILL)
    assert envs.step(np.ones(ENVS, np.int32)).fault.tolist() == [True] * 3 + [False] * 2
    assert "the worker process was killed by SIGKILL" in envs.faults[-1].text
    assert envs.step(np.ones(ENVS, np.int32)).first.tolist() == [True] * 3 + [False] * 2
    assert not envs.step(np.ones(ENVS, np.int32)).fault.any()


@pytest.mark.slow
def test_what_a_worker_cannot_make_is_told_with_its_traceback(vector):
    with pytest.raises(Exception, match="no licence") as raised:
        vector("tests.helpers.broken_levels:OnlyOne-v0")
    fault = make_fault("an environment of it cannot be made", raised.value)
    assert fault.text == "an environment of it cannot be made: OSError: no licence"
    assert "broken_levels.py" in fault.traceback


@pytest.mark.slow
def test_masks_do_not_depend_on_the_first_reset_of_a_worker(vector):
    """Whether masks are offered is known before; the worker that asked again was told no."""
    envs = vector("crashing:DoorsThatJam", workers=1, count=2)
    step = envs.reset()
    assert step.fault.tolist() == [True, False]
    assert step.mask.tolist() == [[True] * 4, [True, False, True, False]]
    step = envs.step(np.array([0, 2]))
    assert step.mask.tolist() == [[True, False, True, False], [False, True, True, False]]


@pytest.mark.slow
def test_the_worker_that_dies_while_its_environments_are_made_is_named(vector, monkeypatch):
    waits = WorkerProcess.receive

    def receive(worker):
        if worker.work.first:
            raise WorkerDied(worker.work, "was killed by SIGKILL")
        return waits(worker)

    monkeypatch.setattr(WorkerProcess, "receive", receive)
    with pytest.raises(FaultElsewhere, match=r"environments 3 to 4 of .*: .* killed by SIGKILL"):
        vector("crashing:Raises")


_VECTOR = """
import sys, numpy as np
from impala_mm.environments.gym_vector import GymVector, blank_step
from impala_mm.environments.make import find_level, make_environments
envs = make_environments("crashing:HangsInC", 2, 1, workers=2)
envs.reset()
print(*[worker.pid for worker in envs._workers], flush=True)
envs.step(np.array([1, 3]))
"""


@pytest.mark.slow
def test_workers_end_when_their_actor_is_killed_whatever_they_do():
    process = subprocess.Popen(
        [sys.executable, "-c", _VECTOR],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/helpers'}"},
        text=True,
    )
    assert process.stdout
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(_is_alive, pids))
    process.kill()
    process.wait()
    until(lambda: not any(map(_is_alive, pids)))


def test_a_new_worker_opens_each_environment_once():
    """The shared memory still shows the faults of the one before it."""
    found, opened = find_level("crashing:Raises"), []
    conversion = found.conversion()
    shown = blank_step(2, conversion)
    shown.blank(slice(None))

    def open_one(renders):
        opened.append(found.open(renders))
        return opened[-1]

    envs = GymVector(found._spec(conversion), conversion, open_one, 2, 0, now=shown)
    assert not envs.step(np.zeros(2, np.int32)).fault.any()
    assert len(opened) == 2


def test_a_worker_cannot_change_the_size_of_the_shared_memory(tmp_path):
    """Memory that shrinks ends the process that reads it."""
    with (tmp_path / "memory").open("w+b") as file:
        shared = map_nest(np.zeros(100), file.fileno())
        same = map_nest(np.zeros(100), file.fileno())
        for size in (1, 10000):
            with pytest.raises(ValueError, match="memory"):
                map_nest(np.zeros(size), file.fileno())
    same[99] = 7
    assert shared[99] == 7


def test_files_of_the_current_folder_are_not_run_by_workers(vector, tmp_path, monkeypatch):
    """The folder may be another user's."""
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert len(vector("catch").reset().reward) == ENVS
