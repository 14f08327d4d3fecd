"""Learner and actors as real processes that a user starts, kills and restarts."""

import json
import os
import re
import shlex
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from processes import (
    EXPERIMENT,
    Process,
    catch_command,
    free_port,
    is_running,
    run,
    started,
)
from rows import read_rows
from supervising import until

from launcher.supervise.procfs import descendants


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


_MEASURED = set(
    "frames steps updates seconds frames_per_second episode_return episode_length "
    "shaped_return policy_lag queue_fill wait_share learning_rate grad_norm clipped_share "
    "loss/total loss/policy loss/baseline loss/entropy loss/shift "
    "loss_per_step/total loss_per_step/policy loss_per_step/baseline loss_per_step/entropy "
    "off_policyness".split()
)


def test_catch_is_learnt_in_under_a_minute_and_the_run_ends_by_itself(tmp_path, tmp_path_factory):
    """One command without limits stops at the level's own threshold, 0.9 over 100 games."""
    port, leftovers = free_port(), tmp_path_factory.mktemp("leftovers")
    killed = leftovers / "ompi.4194305"  # the session of an mpirun, of a pid that no process has
    killed.mkdir()
    (killed / f"pmix.{socket.gethostname()}.tool").touch()
    os.utime(killed, (0, 0))
    tmp_path /= "a run"
    command = [*EXPERIMENT, "--level_name=catch", f"--learner_hosts=localhost:{port}"]
    command += [f"--logdir={tmp_path}", '--on_event=echo "$IMPALA_MM_EVENT: $IMPALA_MM_MESSAGE"']
    code, printed = run(*command, "--max_seconds=60", TMPDIR=str(leftovers))
    assert code == 0, printed
    assert not list(leftovers.iterdir())
    assert "finished: the mean return reached 0.9" in printed
    assert all(line.startswith("[learner] ") for line in printed.splitlines()), "no noise"
    rows = read_rows(tmp_path)
    returns = [row["episode_return"] for row in rows if "episode_return" in row]
    assert returns[0] < 0.5
    assert rows[-1]["episode_return"] >= 0.9
    assert f"mean return {rows[-1]['episode_return']:.2f}" in printed
    # A fast machine writes two or three rows, of which the first has no shares.
    assert set().union(*rows) >= _MEASURED
    timed = [row for row in rows if "wait_share" in row]
    shares = [row["wait_share"] + row["train_share"] + row["rest_share"] for row in timed]
    assert shares
    assert shares == pytest.approx([1] * len(shares), abs=0.02)
    assert list((tmp_path / "events").glob("events*"))
    told = [row for row in rows if "actor/acting_share" in row]  # not each row of a quick run
    assert told
    playing = [row["actor/acting_share"] + row["actor/stepping_share"] for row in told]
    assert all(0.1 < share < 1 for share in playing)
    logged = (tmp_path / "learner.log").read_text()
    assert all(line in logged for line in printed.splitlines())
    told = (tmp_path / "on_event.log").read_text()
    assert told.count("save: checkpoint at update") == 1
    assert "end: finished: the mean return reached 0.9" in told


@pytest.fixture(scope="module", params=["actor"])
def by_hand(tmp_path_factory, request):
    """Start an actor that waits, and return it with a learner's command: the harder order."""
    folder = tmp_path_factory.mktemp("by_hand")
    token = folder / "token"
    flags = [
        "--level_name=catch",
        f"--learner_hosts=127.0.0.1:{free_port()}",
        f"--token_file={token}",
        "--batch_size=8",
        f"--inference={request.param}",
    ]
    actor = Process(*EXPERIMENT, "--job_name=actor", "--task=0", *flags)
    started.remove(actor)  # it keeps running between the tests of this module
    actor.until("waiting for the learner at 127.0.0.1")
    learner = [*EXPERIMENT, "--job_name=learner", f"--logdir={folder / 'run'}", *flags]
    learner += ["--total_environment_frames=1e9", "--save_checkpoint_secs=1"]
    yield {"actor": actor, "learner": learner, "flags": flags, "logdir": folder / "run"}
    actor.kill()


@pytest.mark.slow
@pytest.mark.parametrize("by_hand", ["actor", "learner"], indirect=True)
def test_an_actor_started_first_outlives_its_learner_and_works_with_the_next(by_hand):
    actor, logdir = by_hand["actor"], by_hand["logdir"]
    first = Process(*by_hand["learner"])
    first.until("actor 0 on .* joined")
    first.until(r"checkpoint at update [1-9]")
    first.until(r"[1-9][0-9,]* frames \|")
    first.kill()
    actor.until(r"the connection to the learner has ended; trying again|does not answer")
    before = read_rows(logdir)

    second = Process(*by_hand["learner"])
    second.until("listening at")
    listening = time.monotonic()
    resumed = second.until(r"resumed at ([0-9,]+) frames, update (\d+)")
    assert int(resumed[2]) > 0
    until(lambda: re.search("actor 0 on .* joined", second.printed()), 10)  # maybe before that
    second.until(r"[1-9][0-9,]* frames \|")
    assert time.monotonic() - listening < 20
    second.process.send_signal(signal.SIGINT)
    assert second.wait(10) == 130, "saved, and said by the exit code"
    assert "finished: stopped by SIGINT" in second.printed()
    rows = read_rows(logdir)
    assert rows[-1]["updates"] > min(before[-1]["updates"], int(resumed[2]))
    kept = [row["seconds"] for row in before if row["updates"] <= int(resumed[2])]
    assert rows[-1]["seconds"] > max(kept), "time goes on from the checkpoint"
    saved = sorted((logdir / "checkpoints").glob("[0-9]*"))[-1]
    assert int(saved.name) == rows[-1]["updates"], "Ctrl-C loses no update"


def test_a_learner_without_unrolls_ends_at_once_when_asked(tmp_path):
    learner = Process(*catch_command(tmp_path, "--job_name=learner"))
    learner.until("listening at")
    names = [path.read_text() for path in Path(f"/proc/{learner.process.pid}").glob("task/*/comm")]
    assert (names.count("tf_intra\n"), names.count("tf_Compute\n")) == (1, 1)
    assert "trains on one CPU core, since observations are small" in learner.printed()
    learner.process.send_signal(signal.SIGINT)
    assert learner.wait(10) == 130
    assert "finished: stopped by SIGINT" in learner.printed()
    assert not (tmp_path / "checkpoints").exists(), "nothing was learnt"


@pytest.mark.slow
def test_an_actor_that_does_not_belong_is_refused_with_both_names(by_hand):
    """The learner refuses another network and a missing token, keeps running and logs both."""
    learner = Process(*by_hand["learner"])
    learner.until("listening at")
    flags = by_hand["flags"]
    other = "--agent_name=MLPLSTMAgent"
    code, printed = run(*EXPERIMENT, "--job_name=actor", "--task=7", *flags, other)
    assert code == 1
    assert re.search(r"error: this actor's .* is MLPLSTMAgent, the learner's is MLPAgent", printed)
    other = f"--token_file={by_hand['logdir']}/other"
    code, printed = run(*EXPERIMENT, "--job_name=actor", "--task=8", *flags, other)
    assert code == 1
    assert "copy its token file to this host" in printed
    learner.until("actor 7 on .* refused")
    learner.until("a caller without the run's token was refused")
    learner.until(r"[1-9][0-9,]* frames \|")
    learner.process.send_signal(signal.SIGINT)
    assert learner.wait(10) == 130


# Modules that no actor needs.
_NOT_AN_ACTORS = (
    r"keras\..*|"
    r"(tensorboard|pandas|matplotlib|wandb|av|cv2|horovod|mpi4py|paramiko|libtmux)(\..*)?"
)


@pytest.mark.slow
def test_an_actor_asks_its_learner_where_actions_are_chosen(tmp_path):
    """The actor imports only what it needs, because many actors share the memory of a host."""
    flags = [
        "--level_name=catch",
        f"--learner_hosts=127.0.0.1:{free_port()}",
        f"--token_file={tmp_path / 'token'}",
    ]
    learner = Process(
        *(*EXPERIMENT, "--job_name=learner", "--inference=learner", *flags),
        *(f"--logdir={tmp_path / 'run'}", "--total_environment_frames=1e9"),
    )
    actor = [*EXPERIMENT, "--job_name=actor", *flags]
    asks = Process(sys.executable, "-X", "importtime", *actor[1:], "--inference=auto")
    asks.until("joined the learner at .*, which chooses the actions")
    imported = re.findall(r"^import time: .*\| +(\S+)$", asks.printed(), re.MULTILINE)
    assert {"tensorflow.python.ops.math_ops", "impala_mm.actor.stepping_actor"} <= set(imported)
    assert not [name for name in imported if re.fullmatch(_NOT_AN_ACTORS, name)]
    code, printed = run(*actor, "--task=1")
    assert code == 1
    assert "place of inference (--inference) is actor, the learner's is learner" in printed
    learner.until(r"[1-9][0-9,]* frames \|")
    learner.process.send_signal(signal.SIGINT)
    assert learner.wait(10) == 130
    asks.until("waiting for the learner")
    asks.process.send_signal(signal.SIGTERM)
    assert asks.wait(10) == 143


@pytest.mark.slow
def test_no_actor_outlives_a_learner_that_was_killed_and_dead_actors_come_back(tmp_path):
    """Two actors play two levels, whose returns are recorded separately."""
    learner = Process(
        *EXPERIMENT,
        "--level_name=catch, Catch",  # two names of the same game
        f"--learner_hosts=localhost:{free_port()}",
        f"--logdir={tmp_path}",
        "--total_environment_frames=1e9",
        "--num_actors=2",
    )
    learner.until("actor 1 on .* joined")
    processes = descendants(learner.process.pid)
    assert len(processes) >= 6, "a supervisor for each of three"
    actor = next(pid for pid in processes if "--task=1" in _command(pid))
    os.kill(actor, signal.SIGKILL)
    learner.until(r"actor-1 failed: it was killed by SIGKILL; it will be restarted in 0\.5 s")
    learner.until(r"actor 1 on .* joined")
    learner.until(r"return -?[0-9]")
    both = {"episode_return/catch", "episode_return/Catch"}
    until(lambda: both <= read_rows(tmp_path)[-1].keys(), 20)
    processes = descendants(learner.process.pid)
    learner.kill()
    until(lambda: not any(map(is_running, processes)), 5)


@pytest.mark.parametrize("role", [(), ("--job_name=learner",)], ids=["none", "learner"])
def test_a_taken_port_is_reported_with_its_holder_before_anything_is_started(role, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        command = (*EXPERIMENT, "--level_name=catch", f"--learner_hosts={address}")
        code, printed = run(*command, *role, f"--logdir={tmp_path / 'run'}")
    assert code == 2
    assert f"{address}: Address already in use (held by process {os.getpid()}: " in printed
    assert "choose another address" in printed
    assert len(printed.splitlines()) == 1
    if not role:
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--level_name=tests.helpers.computing:Computing-v0"],
        ["--level_name=catch", "--algorithm=tests.helpers.computing", "--agent_name=MLPLSTMAgent"],
    ],
    ids=["level", "algorithm"],
)
def test_levels_and_algorithms_may_compute_with_tensorflow_where_they_please(flags, tmp_path):
    code, printed = run(
        *EXPERIMENT,
        *flags,
        "--inference=learner",
        f"--learner_hosts=localhost:{free_port()}",
        f"--logdir={tmp_path}",
        "--total_environment_frames=5000",
    )
    assert code == 0, printed
    assert "trains on one CPU core" not in printed
    assert read_rows(tmp_path)[-1]["updates"] > 10


def test_a_mistake_that_only_the_learner_can_find_is_printed_once_and_ends_all(tmp_path):
    command = (*EXPERIMENT, "--level_name=CartPol-v1", f"--learner_hosts=localhost:{free_port()}")
    code, printed = run(*command, f"--logdir={tmp_path}", "--num_actors=1")
    assert code == 2, printed
    assert printed.count("error: ") == printed.count("did you mean CartPole-v1") == 1
    assert "supervisor" not in printed


@pytest.mark.slow
def test_old_names_of_flags_are_noted_once_and_the_users_own_command_is_recorded(tmp_path):
    address = f"localhost:{free_port()}"
    command = ("--level_name=catch", f"--learner_host={address}", f"--logdir={tmp_path}")
    begun = Process(*EXPERIMENT, *command, "--total_environment_frames=1e9", "--num_actors=1")
    begun.until(r"[1-9][0-9,]* frames \|")
    begun.process.send_signal(signal.SIGINT)
    assert begun.wait(15) == 130
    printed = begun.printed()
    assert printed.count("note: --learner_host is an old name of --learner_hosts") == 1
    assert "a stop was requested" in printed
    start = json.loads((tmp_path / "starts.jsonl").read_text())
    assert shlex.split(start["command"])[2:5] == list(command)
    assert "--job_name" not in start["command"]
    saved = sorted((tmp_path / "checkpoints").glob("[0-9]*"))[-1]
    assert int(saved.name) == read_rows(tmp_path)[-1]["updates"], "Ctrl-C loses no update"
