"""The bottleneck that a learner reports, and the shares of its time: with real processes."""

import time

import pytest
from deadlines import Deadline
from processes import EXPERIMENT, Process, free_port, needs_horovod, started
from rows import read_rows
from slow_link import SlowLink


def _until(logdir, true, seconds=30):
    """Wait until `true` holds for the rows; return all of them."""
    deadline = Deadline(seconds)
    while not true(rows := read_rows(logdir)):
        assert not deadline.is_over(), rows[-5:]
        time.sleep(0.1)
    return rows


@pytest.mark.slow
def test_actors_with_a_slow_environment_are_said_to_be_too_few(tmp_path):
    """16 environments need 0.64 s for 20 steps, the learner some hundredths of a second."""
    flags = (f"--learner_hosts=localhost:{free_port()}", f"--logdir={tmp_path}", "--num_actors=1")
    level = "--level_name=tests.helpers.games:Sleeping-v0"
    learner = Process(*EXPERIMENT, level, *flags, "--total_environment_frames=1e9")
    learner.until(
        r"bottleneck: actors \(the learner waits (?:[5-9]\d|100)% of its time, actors spend "
        r"(?:[6-9]\d|100)% of theirs in environments\); (?:about \d+|more than 5 times as many) "
        r"actors needed \(1 now\)"
    )
    assert "bottleneck: learner" not in learner.printed()
    assert "bottleneck: network" not in learner.printed()
    rows = _until(tmp_path, lambda rows: "actor/stepping_share" in rows[-1])
    assert rows[-1]["actor/stepping_share"] > 0.8
    assert rows[-1]["actors"] == 1
    assert rows[-1]["verdict"].startswith("bottleneck: actors (the learner waits ")


@pytest.mark.slow
def test_a_slow_link_is_the_bottleneck_where_learner_and_actor_both_wait(tmp_path):
    """An actor's unrolls and the policy have some 140 kB, which take a third of a second."""
    address = f"127.0.0.1:{free_port()}"
    link = SlowLink(address, bytes_per_second=400e3)
    flags = ["--level_name=catch", f"--token_file={tmp_path / 'token'}"]
    learner = Process(
        *(*EXPERIMENT, "--job_name=learner", *flags, f"--learner_hosts={address}"),
        *(f"--logdir={tmp_path / 'run'}", "--total_environment_frames=1e9"),
    )
    for task in range(2):
        Process(
            *(*EXPERIMENT, "--job_name=actor", *flags, f"--task={task}"),
            f"--learner_hosts={link.address}",
        )
    try:
        learner.until(
            r"bottleneck: network \(the learner waits \d\d% of its time for unrolls, actors wait "
            r"\d\d% of theirs to send them\); fewer bytes"
        )
    finally:
        link.close()


@needs_horovod
@pytest.mark.slow
def test_an_all_reduce_that_takes_long_on_all_learners_is_the_bottleneck(tmp_path):
    """Horovod looks for gradients only ten times a second."""
    learners = Process(
        *(*EXPERIMENT, "--level_name=catch", "--num_learners=2", "--num_actors=2"),
        *("--cycle_ms=100", f"--learner_hosts=127.0.0.1:{free_port()}", f"--logdir={tmp_path}"),
        "--total_environment_frames=1e9",
    )
    learners.until(r"bottleneck: all-reduce \(\d\d% of the learners' time\); a larger", 90)
    learners.interrupt(20)


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """Start a learner with hundreds of times the usual work, and an actor whose pid is known."""
    folder = tmp_path_factory.mktemp("busy")
    flags = [
        "--level_name=catch",
        "--algorithm=tests.helpers.heavy",
        f"--learner_hosts=127.0.0.1:{free_port()}",
        f"--token_file={folder / 'token'}",
    ]
    end = ("--total_environment_frames=1e9", f"--logdir={folder}")
    learner = Process(*EXPERIMENT, "--job_name=learner", *end, *flags)
    actor = Process(*EXPERIMENT, "--job_name=actor", *flags)
    for process in (learner, actor):
        started.remove(process)  # they keep running between the tests of this module
    yield {"learner": learner, "actor": actor, "logdir": folder}
    for process in (learner, actor):
        process.kill()


@pytest.mark.slow
def test_a_learner_with_more_work_than_its_actors_is_the_bottleneck(busy):
    """The first line is printed after one update, before the bottleneck is known."""
    busy["learner"].until(r"[1-9][0-9,]* frames \|.*")
    assert "bottleneck" not in busy["learner"].printed()
    busy["learner"].until(r"frames \|.*")
    trains = busy["learner"].until(r"\] bottleneck: learner \(it trains (\d+)% of its time")
    assert int(trains[1]) > 90
    busy["learner"].until(r"actors wait \d\d% of theirs\); a GPU or another learner would help")
