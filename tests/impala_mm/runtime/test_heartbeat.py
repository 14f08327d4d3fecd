"""The heartbeat file: written while the process works, and only if a supervisor asks for it."""

import concurrent.futures
import json
import math
import threading
import time
from types import SimpleNamespace

import pytest
from deadlines import Deadline

from impala_mm.actor import learner_link
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.data.episodes import to_rows
from impala_mm.learner import monitor, run_status
from impala_mm.learner import watching as watches
from impala_mm.learner.checkpointing import Checkpointing
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.runtime import heartbeat
from impala_mm.runtime.heartbeat import Heartbeat


@pytest.fixture
def now(monkeypatch):
    """Return a clock that stands still until it is set."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    for module in (heartbeat, monitor, run_status, watches):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_it_beats_once_a_second_at_most_and_says_the_frames(tmp_path, now):
    path = tmp_path / "beat"
    alive = Heartbeat(str(path))
    alive.frames = 12.0
    alive.beat()
    assert json.loads(path.read_text()) == {"frames": 12}
    alive.frames = 20.0
    now.now += 0.9
    alive.beat()
    assert json.loads(path.read_text()) == {"frames": 12}
    now.now += 0.2
    alive.beat()
    assert json.loads(path.read_text()) == {"frames": 20}
    assert [each.name for each in tmp_path.iterdir()] == ["beat"]


def test_a_crash_is_reported_without_frames_and_known_again_at_the_next_start(
    tmp_path, monkeypatch
):
    path = tmp_path / "beat"
    alive = Heartbeat(str(path))
    alive.frames = 12.0
    monkeypatch.delenv("IMPALA_MM_LAST_CRASH", raising=False)
    assert not alive.repeats_crash("ValueError at a.py:7")
    assert json.loads(path.read_text()) == {"frames": 0, "crash": "ValueError at a.py:7"}
    monkeypatch.setenv("IMPALA_MM_LAST_CRASH", "ValueError at a.py:7")
    assert not alive.repeats_crash("ValueError at a.py:8")
    assert alive.repeats_crash("ValueError at a.py:7")
    alive.give_up("it crashed twice")
    assert json.loads(path.read_text()) == {"frames": 0, "gave_up": "it crashed twice"}


def test_without_the_variable_nothing_is_written_and_a_missing_folder_is_no_error(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(heartbeat.VARIABLE, raising=False)
    for alive in (heartbeat.of_this_process(), heartbeat.of_learner(), Heartbeat("not/there")):
        alive.beat()
    assert not list(tmp_path.iterdir())


def test_each_of_several_learners_has_a_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path / "beat"))
    heartbeat.of_learner().beat()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    heartbeat.of_learner().beat()
    assert {path.name for path in tmp_path.iterdir()} == {"beat", "beat-1"}


def test_an_actor_that_waits_to_send_calls_its_callback():
    link = learner_link.LearnerLink([], 0, {}, "", 0.0, 0, print, stop := threading.Event())
    group = learner_link.UnrollBatch(0, 0, [], to_rows([]))
    assert link.send(group)
    calls = []

    def meanwhile():
        calls.append(time.monotonic())
        if len(calls) == 3:
            stop.set()

    assert not link.send(group, meanwhile), "the one before was never taken"
    assert len(calls) == 3


@pytest.fixture
def watching(tmp_path, monkeypatch, now):
    """Return the monitor of a learner that has only the attributes that the monitor reads."""
    monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path / "beat"))
    learner = SimpleNamespace(updates=0, frames=0.0, is_compiling=False)
    learner.variables_lock = threading.Lock()
    learner.group, learner.server, learner.algorithm = SimpleNamespace(size=1), None, Algorithm()
    learner.limits = SimpleNamespace(frames=1e9, seconds=math.inf)
    learner.config = Config(learner_assignment="fixed")
    status = run_status.RunStatus(learner, {}, print)
    made = monitor.LearnerMonitor(status, None)
    status.receive([])

    def beats():
        (tmp_path / "beat").unlink(missing_ok=True)
        now.now += 5
        made._beat.look(now.now)
        return (tmp_path / "beat").exists()

    return SimpleNamespace(
        learner=learner, beats=beats, heard=lambda: status.receive([]), status=status
    )


def test_a_learner_without_unrolls_beats_and_one_whose_update_hangs_does_not(watching):
    assert watching.beats(), "it waits for its actors"
    with watching.learner.variables_lock:
        assert not watching.beats(), "one update from then to now"
        watching.heard()
        watching.learner.updates = 1
        assert watching.beats(), "one has ended, and another is under way"
        watching.heard()
        assert not watching.beats()


def test_a_first_update_may_take_three_minutes_longer(watching):
    with watching.learner.variables_lock:
        watching.learner.is_compiling = True
        beats = []
        for _ in range(40):
            watching.heard()
            beats.append(watching.beats())
    assert beats == [True] * 35 + [False] * 5


def test_while_a_checkpoint_is_written_the_learner_beats(watching, tmp_path, now):
    path, seen = tmp_path / "beat", []

    def write(about):
        path.unlink(missing_ok=True)
        deadline = Deadline(20)
        while not path.exists() and not deadline.is_over():
            now.now += 1
            time.sleep(0.05)
        seen.append(path.exists())

    learner = watching.learner
    learner.updates, learner.steps, learner.offline_updates = 1, 10, 0
    learner.variables_complete = True
    checkpoints = SimpleNamespace(snapshot=lambda: None, save=write)
    about, hook = CheckpointInfo(1, {}, {}, {}), SimpleNamespace(call=lambda *event: None)
    assert Checkpointing(watching.status, checkpoints, about, hook).save()
    assert seen == [True]


def test_what_never_ends_is_no_work_for_ever(now, tmp_path, monkeypatch):
    alive, beats = Heartbeat(str(tmp_path / "beat")), []
    monkeypatch.setattr(alive, "beat", lambda: beats.append(now.now))
    ended = threading.Event()

    def wait(futures, seconds):
        now.now += 600
        if len(beats) == 2 and now.now > 3000:
            ended.set()
            return futures_wait(futures)
        return SimpleNamespace(done=[])

    futures_wait = concurrent.futures.wait
    monkeypatch.setattr(heartbeat.concurrent.futures, "wait", wait)
    assert alive.beat_during(ended.wait)
    assert beats == [700, 1300]
    monkeypatch.undo()
    with pytest.raises(ZeroDivisionError):
        alive.beat_during(lambda: 1 / 0)


def test_a_learner_that_receives_nothing_from_the_others_stops_beating(watching):
    assert [watching.beats() for _ in range(5)] == [True] * 3 + [False] * 2
    watching.heard()
    assert watching.beats()
