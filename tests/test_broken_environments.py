"""What a run does with environments that break: shows the user's lines, counts, and ends."""

import pytest
from processes import EXPERIMENT, ROOT, Process, free_port, run
from rows import read_rows

from tests.helpers import broken_levels

pytestmark = pytest.mark.slow
LEVELS = "tests.helpers.broken_levels"
NO_STEP = r"no environment of this actor has completed a single step: 16 unrolls had faults"


def _command(folder, level, *more):
    return (
        *(*EXPERIMENT, f"--level_name={LEVELS}:{level}-v0", f"--logdir={folder}"),
        *("--check_env_secs=0", *more),
    )


def test_a_run_that_can_never_succeed_ends_with_code_1(tmp_path):
    code, printed = run(*_command(tmp_path, "BreaksInStep", "--max_seconds=60"), limit=240)
    assert code == 1, printed
    log = (tmp_path / "actor-0.log").read_text()
    error = "AttributeError: 'BreaksInStep' object has no attribute 'no_such_map'"
    line = broken_levels.BreaksInStep._walk.__code__.co_firstlineno + 1
    for shown in (printed, log):
        assert f"environment 0 of {LEVELS}:BreaksInStep-v0: {error}" in shown
        assert f'File "{ROOT}/tests/helpers/broken_levels.py", line {line}, in _walk' in shown
    assert "more faults of this kind: environment 15 " in log.replace("15, when", "15 when")
    assert "[learner] actor 1 on " in printed
    assert f"error: all 2 actors gave up (actor 0: {NO_STEP}; the first fault: " in printed
    assert f"the same flags with --logdir={tmp_path} start over" in printed
    assert not (tmp_path / "checkpoints").exists()


def test_environments_that_cannot_be_made_are_tried_five_times(tmp_path):
    code, printed = run(*_command(tmp_path, "OnlyOne"), limit=240)
    assert code == 1, printed
    assert "cannot be made: OSError: no licence" in printed
    assert '      raise OSError("no licence")\n' in printed
    assert "the environments of this actor could not be made in 5 attempts" in printed


@pytest.mark.parametrize("workers", [0, 2])
def test_an_environment_that_closes_the_files_of_its_process_ends_the_run(tmp_path, workers):
    flags = (f"--env_workers={workers}", "--num_actors=1")
    code, printed = run(*_command(tmp_path, "ClosesFiles", *flags), limit=240)
    assert code == 1, printed
    assert "did not open, such as by os.closerange" in printed
    if not workers:  # its process cannot reach the learner
        assert "actor-0 will not be restarted" in printed
        assert "the run ends, since no actor is left" in printed


def test_by_hand_the_actor_ends_with_code_1_and_the_learner_shows_why(tmp_path):
    address = f"--learner_hosts=localhost:{free_port()}"
    where = "--inference=learner"
    learner = Process(*_command(tmp_path, "BreaksInStep", address, where, "--job_name=learner"))
    learner.until("listening at")
    code, printed = run(*_command("", "BreaksInStep", address, where, "--job_name=actor"))
    assert code == 1, printed
    assert printed.count("in _walk\n") == 2, "the first fault, and the end"
    assert f"[actor 0] error: {NO_STEP}; the first fault: " in printed
    learner.until(r"in _walk\n(.*\n)+.* gave up: no environment of this actor has completed a ")
    learner.until(r"no unroll yet: 0 .*actors connected, 1 gave up \(")


def test_a_run_in_which_some_environments_work_continues(tmp_path):
    levels = f"--level_name={LEVELS}:BreaksSometimes-v0,{LEVELS}:BreaksInReset-v0"
    more = (levels, "--total_environment_frames=100000")
    code, printed = run(*_command(tmp_path, "Works", *more), limit=240)
    assert code == 0, printed
    assert f"gave up: {NO_STEP}\n" in printed
    assert f"[supervisor] actor-1 will not be restarted; log: {tmp_path}/actor-1.log" in printed
    assert "RuntimeError: the simulator is gone" in printed
    assert printed.count('raise RuntimeError("the simulator is gone")') == 1
    assert read_rows(tmp_path)[-1]["environment_faults"] > 32 + 20
    assert "finished: reached 100,000 frames" in printed


def test_seconds_count_from_the_first_unroll(tmp_path):
    code, printed = run(*_command(tmp_path, "StartsLate", "--max_seconds=2"), SLOW="0.7", limit=240)
    assert code == 0, printed
    assert "[learner] no unroll yet: 0 of 2 actors connected (" in printed
    assert (
        "finished: reached --max_seconds=2 after the first unroll; mean return 10.00 after "
        in printed
    )
    last = read_rows(tmp_path)[-1]
    assert last["frames"] > 0
    assert 2 <= last["seconds"] < 8, "the wait before it does not count"
