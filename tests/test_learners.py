"""Several learners as real processes: commands, kills and wrong flags of users."""

import os
import re
import signal
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
    needs_horovod,
    run,
    started,
)
from rows import read_rows, until_row
from supervising import until

from launcher.supervise.procfs import descendants

pytestmark = [needs_horovod, pytest.mark.timeout(240)]
# Allows root, and more ranks than this machine has cores.
MPIRUN = (
    *(str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root", "--oversubscribe"),
    *("--mca", "mpi_yield_when_idle", "1"),
)
TWO = (
    *("--num_learners=2", "--num_actors=2", "--batch_size=4"),
    "--total_environment_frames=1e9",
)
SLOW = "--level_name=tests.helpers.games:Sleeping-v0"  # bottleneck: the environment, not the CPU


def _steps_per_second(logdir, seconds):
    """Measure the steps/s over the next `seconds`."""
    begin = read_rows(logdir)[-1]
    end = until_row(logdir, lambda row: row["seconds"] >= begin["seconds"] + seconds, seconds + 30)
    return (end["steps"] - begin["steps"]) / (end["seconds"] - begin["seconds"])


def _ranks(mpirun):
    """Return the processes of its two learners."""
    ranks = [
        pid
        for pid in descendants(mpirun.process.pid)
        if "--job_name=learner" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    assert len(ranks) == 2
    return ranks


def _cpu_seconds(pids):
    """Return the CPU seconds that these processes have used together."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_two_learners_here_train_by_an_algorithm_of_our_own_and_ctrl_c_saves(tmp_path):
    """A user's algorithm with two optimizer steps per update runs on two ranks unchanged.

    A random policy's return in Catch is -0.6.
    """
    flags = ("--algorithm=tests.helpers.dqn_like", "--learning_rate=0.001", "--check_sync_every=10")
    cluster = Process(*catch_command(tmp_path, *TWO, *flags))
    cluster.until(r"catch, tests.helpers.dqn_like with .* weights on 2 learners")
    cluster.until(r"\[learner 0\] [1-9][0-9,]* frames \|")
    until_row(tmp_path, lambda row: row.get("episode_return", -2) >= 0.5, 200)
    processes = descendants(cluster.process.pid)
    assert len(processes) >= 8, "mpirun, two learners, two actors, and three supervisors"
    cluster.interrupt(20)
    until(lambda: not any(map(is_running, processes)))
    printed = cluster.printed()
    assert "finished: a stop was requested" in printed
    assert "error" not in printed
    row = read_rows(tmp_path)[-1]
    saved = sorted((tmp_path / "checkpoints").glob("[0-9]*"))[-1]
    assert int(saved.name) == row["updates"], "Ctrl-C loses no update"
    assert row["sync_checks"] == row["updates"] // 10 > 0
    assert row["sync_repairs"] == 0
    own = [row[f"steps/learner{rank}"] for rank in range(2)]
    assert sum(own) == row["steps"]


@pytest.mark.slow
def test_an_update_of_several_steps_that_fails_is_not_saved_and_the_run_resumes_before_it(tmp_path):
    """The third step of update 60 is not finite on learner 1; two steps were applied by then.

    A checkpoint is due at all times, so some update is always being saved.
    """
    flags = ("--algorithm=tests.helpers.minibatched", "--check_sync_every=10")
    command = catch_command(tmp_path, *TWO, *flags, "--save_checkpoint_secs=0.1")
    code, printed = run(*command, FAULT_AT="60", limit=150)
    assert code == 1, printed
    assert "error: update 60 is not finite on learner 1 (grad_norm = nan)" in printed
    assert "the last checkpoint is intact" in printed
    newest = max((tmp_path / "checkpoints").glob("[0-9]*"))
    assert 0 < int(newest.name) < 60
    row = read_rows(tmp_path)[-1]
    assert (row["updates"], row["sync_repairs"], row["steps_made"]) == (59, 0, 4)
    assert row["grad_norm"] > 0
    frames = row["frames"] + 4000
    code, printed = run(*command, f"--total_environment_frames={frames:.0f}", limit=150)
    assert code == 0, printed
    assert f"update {int(newest.name)}" in printed
    assert f"finished: reached {frames:,.0f} frames" in printed


@pytest.mark.slow
def test_a_run_whose_learners_wait_for_different_calls_ends_with_a_sentence(tmp_path):
    """It would hang for ever: learner 1 waits in update 20, and learner 0 in update 21."""
    flags = (*TWO, "--algorithm=tests.helpers.diverging")
    code, printed = run(*catch_command(tmp_path, *flags), limit=200)
    assert code == 1, printed
    error = r"\[learner 0\] error: no update for \d+ s: learners 0 and 1 did not finish update 20, "
    assert len(re.findall(error, printed)) == 1, printed
    assert "Traceback" not in printed
    assert read_rows(tmp_path)[-1]["updates"] in {19, 20}


@pytest.fixture
def two(tmp_path, request):
    """Start two learners under mpirun, in its colon-separated form, and actors."""
    assignment, count = request.param
    flags = [SLOW, f"--token_file={tmp_path / 'token'}", f"--learner_assignment={assignment}"]
    of_run = [f"--logdir={tmp_path / 'run'}", "--total_environment_frames=1e9"]
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    each = [
        ["-np", "1", *EXPERIMENT, "--job_name=learner", *flags, f"--learner_hosts={address}"]
        for address in addresses
    ]
    learners = Process(*MPIRUN, *each[0], *of_run, ":", *each[1], *of_run)
    actors = [
        Process(
            *(*EXPERIMENT, "--job_name=actor", f"--task={task}", *flags),
            f"--learner_hosts={','.join(addresses)}",
        )
        for task in range(count)
    ]
    learners.until(r"\[learner 0\] [1-9][0-9,]* frames \|")
    return learners, actors, tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize("two", [("fixed", 2)], indirect=True)
def test_with_fixed_actors_a_learner_whose_actors_die_is_named_and_all_stop_while_it_starves(two):
    learners, actors, logdir = two
    actors[1].kill()
    learners.until(
        r"bottleneck: learner 1 \(no unrolls, the other learners wait for it\); assign actors to it"
    )
    begin, used = time.monotonic(), _cpu_seconds(ranks := _ranks(learners))
    assert _steps_per_second(logdir, 4) == 0
    # Horovod as released would spin; our build uses a tenth of a core for its thread.
    spent = (_cpu_seconds(ranks) - used) / (time.monotonic() - begin)
    assert spent < 0.35 * len(ranks)
    asked = time.monotonic()
    learners.process.send_signal(signal.SIGUSR1)
    learners.until("finished: a stop was requested", seconds=10)
    assert learners.wait(10) == 0, learners.printed()
    assert time.monotonic() - asked < 10
    row = read_rows(logdir)[-1]
    assert (logdir / "checkpoints" / f"{row['updates']:010d}").is_dir()
    assert actors[0].process.poll() is None, "it waits for the next learners"


@pytest.mark.slow
@pytest.mark.parametrize("two", [("balance", 4)], indirect=True)
def test_with_balance_the_actors_that_are_left_feed_all_learners_until_one_is_killed(two):
    """If all actors of learner 1 are killed, total steps/s drop by at most their share.

    If that learner is killed, the other one ends within seconds.
    """
    learners, actors, logdir = two
    time.sleep(10)
    before = _steps_per_second(logdir, 15)
    joined = re.findall(r"\[learner (\d)\] actor (\d) on .* joined", learners.printed())
    feeds = {
        int(actor): int(learner) for learner, actor in joined
    }  # the learner that it joined last
    gone = [actor for actor in feeds if feeds[actor] == 1]
    assert 1 <= len(gone) <= 3
    learners.skip()
    for actor in gone:
        actors[actor].kill()
    learners.until(r"\[learner 1\] actor \d on .* joined", seconds=40)
    time.sleep(5)
    after = _steps_per_second(logdir, 15)
    left = [actors[actor] for actor in feeds if actor not in gone]
    assert after > 0.9 * before * len(left) / len(actors)
    assert not any("unrolls dropped" in actor.printed() for actor in left)
    ranks = _ranks(learners)
    os.kill(ranks[1], signal.SIGKILL)
    assert learners.wait(10) != 0
    until(lambda: not any(map(is_running, ranks)))
    assert re.search(r"exited on\s+signal 9", learners.printed())


def test_learners_by_mpirun_each_with_its_learner_host_and_actors_from_0_train(tmp_path):
    """As impala_horovod_gym's page on mpirun has it: a worker set for each learner."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    common = (*EXPERIMENT, "--level_name=catch", f"--token_file={tmp_path / 'token'}", "--task=0")
    sets = [(*common, f"--learner_host={address}", "--actor_hosts=b:1") for address in addresses]
    of_run = [f"--logdir={tmp_path / 'run'}", "--total_environment_frames=2000"]
    each = [("-np", 1, *command, "--job_name=learner", *of_run) for command in sets]
    actors = [Process(*command, "--job_name=actor") for command in sets]
    code, printed = run(*MPIRUN, *each[0], ":", *each[1], limit=200)
    assert code == 0, printed
    assert "on 2 learners" in printed
    row = read_rows(tmp_path / "run")[-1]
    assert row["frames"] >= 2000
    assert min(row["steps/learner0"], row["steps/learner1"]) > 0
    for actor in actors:
        actor.until(r"the run has 2 learners: .* actors with the same one play the same games")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Yield a function of a fault that starts two learners with it, each bound to a core.

    All of them continue the same run, and two actors feed them.
    """
    folder = tmp_path_factory.mktemp("faulty")
    addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    flags = [
        *("--algorithm=tests.helpers.faults", "--level_name=catch", "--batch_size=2"),
        *(f"--learner_hosts={addresses}", f"--token_file={folder / 'token'}"),
    ]
    learner = [
        *(*EXPERIMENT, "--job_name=learner", *flags, f"--logdir={folder / 'run'}"),
        *("--total_environment_frames=1e9", "--check_sync_every=10", "--save_checkpoint_secs=1"),
    ]
    actors = [Process(*EXPERIMENT, "--job_name=actor", f"--task={i}", *flags) for i in range(2)]
    for actor in actors:  # they keep running between the tests
        started.remove(actor)

    def start(fault):
        bound = ("--bind-to", "hwthread", "-x", f"FAULTS={fault}")
        return Process(*MPIRUN, *bound, "-np", "2", *learner), folder / "run"

    yield start
    for actor in actors:
        actor.kill()


@pytest.mark.slow
def test_one_ulp_of_difference_is_repaired_and_counted_and_a_bare_mpirun_obeys_ctrl_c(faulty):
    """mpirun kills its learners a quarter of a second later: only the last checkpoint remains."""
    learners, logdir = faulty("25:ulp")
    if len(os.sched_getaffinity(0)) > 1:
        learners.until(r"\[learner 1\] was bound to 1 core\(s\) by its launcher; it uses all")
    learners.until(r"checkpoint at update [1-9]")
    learners.until(r"[1-9][0-9,]* frames \|")
    row = until_row(logdir, lambda row: row["updates"] >= 31, 60)
    assert row["sync_repairs"] == 1
    assert row["sync_checks"] >= 3
    processes = descendants(learners.process.pid)
    learners.process.send_signal(signal.SIGINT)
    assert learners.wait(10) != 0
    until(lambda: not any(map(is_running, processes)))


@pytest.mark.slow
def test_a_larger_difference_ends_the_run_by_the_variables_name(faulty):
    """One weight of learner 1 changes by 0.001 after both have loaded rank 0's checkpoint."""
    learners, logdir = faulty("25:0.001")
    learners.until(
        r"\[learner 0\] error: network/\S+/w of learner 1 differs from learner 0's by 0.00"
    )
    assert learners.wait(20) == 1
    printed = learners.printed()
    assert printed.count("error:") == 1
    assert "Traceback" not in printed
    resumed = re.search(r"resumed at [0-9,]+ frames, update (\d+)", printed)
    row = read_rows(logdir)[-1]
    assert row["updates"] - (int(resumed[1]) if resumed else 0) <= 35, (
        "26 until it changes, 9 until they are compared"
    )
    assert row["sync_repairs"] == 0, "equal after the resume"


@pytest.mark.slow
def test_an_update_that_fails_on_one_learner_ends_all_and_rank_0_says_why(faulty):
    learners, _ = faulty("25:error")
    learners.until(
        r"\[learner 0\] error: learner 1 failed: UnknownError: RuntimeError: a fault of learner 1 "
        r"alone; (the last checkpoint is intact: the same flags with --logdir=/\S+ resume from it|"
        r"no checkpoint was saved yet: the same flags with --logdir=/\S+ start over)\n",
        120,
    )
    assert learners.wait(20) != 0


@pytest.mark.slow
def test_without_mpi_two_learners_train_under_horovodrun(tmp_path):
    addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    flags = ["--level_name=catch", f"--learner_hosts={addresses}"]
    for task in range(2):
        Process(*EXPERIMENT, "--job_name=actor", f"--task={task}", *flags)
    command = [*EXPERIMENT, "--job_name=learner", *flags, f"--logdir={tmp_path}"]
    command += ["--total_environment_frames=60000"]
    code, printed = run("horovodrun", "--gloo", "-np", 2, *command, limit=200)
    assert code == 0, printed
    assert "finished: reached 60,000 frames" in printed
    row = read_rows(tmp_path)[-1]
    assert row["frames"] >= 60000
    assert min(row["steps/learner0"], row["steps/learner1"]) > 0


def test_learners_that_are_given_different_flags_are_refused_by_flag_and_rank(tmp_path):
    ports = [free_port(), free_port()]
    common = [*EXPERIMENT, "--job_name=learner", "--level_name=catch", f"--logdir={tmp_path}"]
    each = [
        ["-np", 1, *common, f"--learner_hosts=127.0.0.1:{port}", f"--learning_rate={rate}"]
        for port, rate in zip(ports, (0.001, 0.002), strict=True)
    ]
    code, printed = run(*MPIRUN, *each[0], ":", *each[1])
    assert code == 2, printed
    said = "error: the learners' --learning_rate differ: 0.001 on 0, 0.002 on 1; give all of them"
    assert printed.count(said) == 1
    assert "Traceback" not in printed


def test_more_learners_than_addresses_are_refused(tmp_path):
    addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    common = [*EXPERIMENT, "--job_name=learner", "--level_name=catch", f"--logdir={tmp_path}"]
    code, printed = run(*MPIRUN, "-np", 3, *common, f"--learner_hosts={addresses}")
    assert code == 2, printed
    assert "3 learners were started, but --learner_hosts names 2: " in printed
    assert "Traceback" not in printed


def test_mpirun_without_a_role_is_refused(tmp_path):
    code, printed = run(*MPIRUN, "-np", 2, *EXPERIMENT, "--level_name=catch")
    assert code == 2
    assert "2 processes were started together: each must be a learner" in printed


def test_as_many_addresses_as_learners_are_asked_for():
    code, printed = run(*EXPERIMENT, "--num_learners=3", "--learner_hosts=localhost:1,localhost:2")
    assert code == 2
    assert "--num_learners=3, but --learner_hosts names 2: give only the first address" in printed
