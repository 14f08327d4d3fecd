"""Several runs on one machine, as real processes: ports, and actors that stay with their run."""

import json
import os
import re
import signal
import socket

import pytest
from processes import EXPERIMENT, Process, free_port, needs_horovod, run
from rows import read_rows
from supervising import Supervised, until

pytestmark = pytest.mark.slow


def _learners(logdir):
    """Return the addresses of a run's learners at its last start."""
    return json.loads((logdir / "starts.jsonl").read_text().splitlines()[-1])["learners"]


def test_two_runs_of_the_same_second_train_each_with_its_own_actors(tmp_path):
    flags = ("--level_name=catch", "--total_environment_frames=4000", "--num_actors=1")
    runs = {
        name: Process(*EXPERIMENT, *flags, f"--logdir={tmp_path / name}") for name in ("a", "b")
    }
    for each in runs.values():
        assert each.wait(100) == 0, each.printed()
    addresses = [_learners(tmp_path / name)[0] for name in runs]
    assert len(set(addresses)) == 2
    for (name, each), address in zip(runs.items(), addresses, strict=True):
        printed = each.printed()
        assert f"listening at {address} " in printed
        assert len(re.findall(r"actor \d on \S+ joined", printed)) == 1, printed
        assert "another" not in printed
        assert read_rows(tmp_path / name)[-1]["frames"] >= 4000
        log = (tmp_path / name / "actor-0.log").read_text()
        assert f"joined the learner at {address}, " in log
        assert "another" not in log


@pytest.mark.parametrize("inference", ["auto", "learner"])
def test_an_actor_of_a_run_never_joins_the_learner_of_another_one(tmp_path, inference):
    """Another run's learner listens at the address that it knows; an actor by hand may join it."""
    common = ("--level_name=catch", "--total_environment_frames=1e9", "--num_actors=1")
    first = Process(*EXPERIMENT, *common, f"--inference={inference}", f"--logdir={tmp_path / 'a'}")
    first.until("actor 0 on .* joined")
    [address] = _learners(tmp_path / "a")
    flags = ("--job_name=actor", "--level_name=catch", f"--learner_hosts={address}")
    flags += (f"--inference={inference}",)
    stranger = Process(*EXPERIMENT, *flags, IMPALA_MM_START="other")
    stranger.until(
        rf"waiting for (the|a) learner at {address} \(\d+ s so far\): this learner belongs to "
        r"another run \(run [0-9a-f]{8}\) than this actor \(run other\)"
    )
    by_hand = Process(*EXPERIMENT, *flags, "--task=1")
    by_hand.until("joined the learner at")
    first.until("actor 1 on .* joined")
    assert "joined" not in stranger.printed()
    first.interrupt(20)


def test_a_learner_that_is_started_twice_in_the_same_second_runs_once(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    command = (*EXPERIMENT, "--job_name=learner", "--level_name=catch")
    both = [
        Process(*command, f"--learner_hosts={address}", f"--logdir={tmp_path / name}")
        for name in ("a", "b")
    ]
    until(lambda: any(each.process.poll() is not None for each in both), 30)
    [refused] = [each for each in both if each.process.poll() is not None]
    [other] = [each for each in both if each is not refused]
    assert refused.process.returncode == 2
    assert re.fullmatch(
        rf"error: the learner cannot listen: {address}: Address already in use \(held by process "
        rf"{other.process.pid}: .*experiment\.py .*\); end that process, or choose another "
        r"address, such as --learner_hosts=127\.0\.0\.1:\d+, also for its actors\n",
        refused.printed(),
    )
    other.until(f"listening at {address} ")


def _take(thief, address):
    host, _, port = address.partition(":")
    try:
        thief.bind((host, int(port)))
        thief.listen()
    except OSError:
        return False
    return True


def test_a_killed_learner_comes_back_at_its_port_although_others_want_one(tmp_path):
    """Its supervisor restarts it, and its actors connect again."""
    flags = [f"--logdir={tmp_path / 'run'}", f"--token_file={tmp_path / 'token'}"]
    flags += ["--level_name=catch", "--total_environment_frames=1e9"]
    learners = Supervised(
        tmp_path,
        [*EXPERIMENT, "--job_name=learner", "--learner_hosts=localhost:0", *flags],
        restarts=5,
        environment=dict(os.environ),
    )
    [address] = until(lambda: learners.state.get("learner_hosts"), 30)
    actor = Process(*EXPERIMENT, "--job_name=actor", f"--learner_hosts={address}", *flags)
    actor.until(f"joined the learner at {address}")
    os.kill(learners.state["process"][0], signal.SIGKILL)
    with socket.socket() as thief:  # it has the port when the learner is restarted
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until(lambda: _take(thief, address))
        until(lambda: "error: the learner cannot listen" in learners.log.read_text(), 20)
    actor.until(f"joined the learner at {address}", 60)
    assert _learners(tmp_path / "run") == [address]
    assert learners.state["restarts"] >= 2
    learners.end()


@needs_horovod
def test_a_port_that_one_of_several_learners_finds_taken_is_refused_once(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        hosts = f"--learner_hosts=127.0.0.1:{free_port()},{taken}"
        command = ("mpirun", "--oversubscribe", "-np", 2, *EXPERIMENT, "--job_name=learner")
        code, printed = run(*command, "--level_name=catch", hosts, f"--logdir={tmp_path / 'run'}")
    assert code == 2, printed
    assert printed.count("error: ") == 1
    assert f"error: learner 1: the learner cannot listen: {taken}: Address already in" in printed
    assert f"held by process {os.getpid()}: " in printed
    assert not (tmp_path / "run").exists()
