"""One process under its supervisor: real ones, killed, hung, ordered to end, and left behind."""

import os
import re
import shutil
import signal
import sys
import time

import pytest
from deadlines import within
from supervising import Supervised, until

from launcher.supervise.process_output import error_lines
from launcher.supervise.procfs import is_alive, start_time

PYTHON = [sys.executable, "-uSc"]
# Says so, and goes on until it is told to end.
STAYS = [
    *PYTHON,
    "import signal, sys, time\n"
    "for n in (signal.SIGUSR1, signal.SIGTERM):\n"
    "    signal.signal(n, lambda n, _: (print('got', n), sys.exit(0)))\n"
    "print('up')\n"
    "time.sleep(60)",
]


@pytest.fixture
def supervise(tmp_path):
    made = []

    def make(command, **changes):
        made.append(Supervised(tmp_path, command, **changes))
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_what_it_prints_is_logged_and_its_end_is_the_runs(supervise, tmp_path):
    told = supervise(
        ["sh", "-c", 'echo "$A|$HOME|$PWD"; echo err >&2'],
        environment={"A": "b c", "PATH": os.environ["PATH"]},
    )
    assert told.wait() == 0
    assert (told.state["state"], told.state["code"], told.state["failure"]) == ("ended", 0, None)
    log = told.log.read_text()
    assert f"b c||{tmp_path}\nerr\n" in log
    assert log.endswith("-- learners: ended, exit code 0 --\n")
    assert not (told.folder / "task.json").exists(), "it held an environment"


def test_modules_of_the_folder_where_a_user_stands_are_none_of_its_own(
    supervise, tmp_path, monkeypatch
):
    (mine := tmp_path / "mine").mkdir()
    (mine / "types.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(mine)
    assert supervise(["true"]).wait() == 0


def test_a_clock_that_is_set_meanwhile_does_not_change_how_long_a_process_has_run(supervise):
    jumping = (
        "import sys, time; from pathlib import Path; from launcher.supervise import supervisor;"
        "task = Path(sys.argv[1]); real = time.time;"
        "time.time = lambda: real() + 600 * task.with_name('jump').exists();"
        "sys.exit(supervisor.main(task))"
    )
    told = supervise(STAYS, program=jumping)
    told.until("running")
    (told.folder / "jump").touch()
    until(lambda: told.state["time"] > time.time() + 500)
    assert 0 <= told.state["time"] - told.state["since"] < 60


def test_one_that_dies_starts_again_later_and_later_and_then_no_more(supervise):
    told = supervise(["sh", "-c", "echo $$; exit 7"], restarts=2)
    assert told.wait() == 7
    state = told.state
    assert (state["state"], state["restarts"], state["code"]) == ("failed", 2, 7)
    assert state["failure"]["why"] == "it exited with code 7"
    assert state["failure"]["next"] == "the run ends"
    log = told.log.read_text()
    assert len(set(re.findall(r"^\d+$", log, re.MULTILINE))) == 3, "a new one each time"
    assert "it will be restarted in 0.5 s" in log
    assert "it will be restarted in 1 s" in log


GIVES_UP = 'echo \'{"frames": 0, "gave_up": "no environment works"}\' > actor-0/beat; exit 1'


def test_one_that_gives_up_is_not_started_again(supervise):
    error = "echo '[actor 0] error: none works'; echo '  File a.py'; echo '    bug()'; "
    told = supervise(["sh", "-c", error + GIVES_UP], name="actor-0", restarts=5)
    assert told.wait() == 1
    failure = told.state["failure"]
    assert (told.state["state"], told.state["restarts"]) == ("failed", 0)
    assert failure["next"].endswith("since no environment works")
    assert failure["lines"] == ["[actor 0] error: none works", "  File a.py", "    bug()"]


def test_one_that_worked_before_it_gave_up_is_started_again(supervise):
    works = """[ -e worked ] && {}; echo '{"frames": 9}' > actor-0/beat; touch worked; exit 1"""
    told = supervise(
        ["sh", "-c", works.replace("{}", GIVES_UP)],
        **{"name": "actor-0", "restarts": 2},
    )
    assert told.wait() == 1
    assert told.state["restarts"] == 2


def test_a_start_is_told_the_crash_of_the_last_one_that_had_not_worked(supervise):
    """The process then gives up by itself, if it has the same."""
    crash = (
        'echo "told $IMPALA_MM_LAST_CRASH."; n=$(cat n || echo 0); echo $((n+1)) > n; '
        """echo "{\\"frames\\": $n, \\"crash\\": \\"crash $n\\"}" > actor-0/beat; exit 1"""
    )
    told = supervise(["sh", "-c", crash], name="actor-0", restarts=2)
    assert told.wait() == 1
    lines = [line for line in told.log.read_text().splitlines() if line.startswith("told")]
    assert lines == ["told .", "told crash 0.", "told ."], "the second one had worked"


def test_a_program_that_is_not_there_is_named(supervise):
    told = supervise(["/no/such program"], restarts=5)
    assert told.wait() == 2
    (line,) = told.state["failure"]["lines"]
    assert line.endswith("error: /no/such program: No such file or directory")


def test_of_several_hearts_the_one_that_stops_is_named_and_all_start_again(supervise):
    beats = (
        "import os, time\n"
        "for i in range(40):\n"
        "    for rank in [0, 1] if i < 20 else [0]:\n"
        "        with open(os.path.join('learners', f'beat-{rank}'), 'w') as file:\n"
        "            file.write('{\"frames\": %d}' % (100 * i))\n"
        "    time.sleep(0.25)"
    )
    told = supervise([*PYTHON, beats], stall_secs=2.0, restarts=1)
    until(lambda: (told.state.get("frames_per_second") or 0) > 100)
    state = until(lambda: told.state if told.state.get("restarts") else None, 20)
    assert state["failure"]["why"] == "learner 1 was killed: no heartbeat for 2 s"


def test_before_its_first_beat_it_has_five_times_as_long(supervise):
    told = supervise([*PYTHON, "import time; time.sleep(60)"], stall_secs=0.6)
    begin = time.monotonic()
    with within(10):
        assert told.wait() == 137
    assert time.monotonic() - begin > 2.9


@pytest.mark.parametrize(
    ("grown", "number"), [(True, signal.SIGUSR1), (False, signal.SIGTERM)], ids=["saves", "ends"]
)
def test_an_order_to_save_is_sigusr1_once_there_is_something_to_save(
    supervise, tmp_path, grown, number
):
    rows = tmp_path / "metrics.jsonl"
    rows.write_text("of a start before\n")
    told = supervise(STAYS, rows=str(rows))
    told.until_it_says("up")
    if grown:
        rows.write_text("of a start before\nof this one\n")
    (tmp_path / "stop").write_text("save")
    assert told.wait() == 0
    assert f"got {int(number)}" in told.log.read_text()
    assert told.state["state"] == "stopped"
    assert told.log.read_text().endswith("-- learners: stopped --\n"), "no code, as of a failure"


def test_one_that_obeys_nothing_is_killed_when_its_patience_is_over(supervise, tmp_path):
    deaf = (
        "import signal, time\nfor n in (10, 15): signal.signal(n, 1)\nprint('up')\ntime.sleep(60)"
    )
    rows = tmp_path / "rows"
    told = supervise([*PYTHON, deaf], rows=str(rows), grace_secs=0.5)
    told.until_it_says("up")
    rows.write_text("x")
    (tmp_path / "stop").write_text("save")
    assert told.wait() == 137
    assert told.state["state"] == "failed"
    assert "was asked to save, but was killed by SIGKILL" in told.state["failure"]["why"]


def test_an_order_while_it_waits_to_start_again_is_obeyed(supervise, tmp_path):
    told = supervise(["sh", "-c", "exit 3"], name="actor-0", restarts=9)
    until(lambda: told.state.get("restarts", 0) >= 3)
    told.until("waits")
    (told.folder / "stop").write_text("save")
    told.wait(5)
    assert told.state["state"] == "stopped"


def test_those_that_follow_end_with_their_leader_and_save_is_not_theirs(supervise, tmp_path):
    leader, actor = supervise(STAYS), supervise(STAYS, name="actor-0")
    for each in (leader, actor):
        each.until_it_says("up")
    os.kill(leader.state["process"][0], signal.SIGSTOP)  # it takes its time for saving
    (tmp_path / "stop").write_text("save")
    leader.until("ending")
    time.sleep(1.0)
    assert actor.state["state"] == "running", "learners go first"
    os.kill(leader.state["process"][0], signal.SIGCONT)
    assert (leader.wait(), actor.wait()) == (0, 0)
    assert actor.state["state"] == "stopped"


def test_an_evaluator_has_time_for_the_last_checkpoint_once_the_learners_have_ended(supervise):
    tests = (
        "import signal, sys, time\n"
        "def end(*_): time.sleep(0.5); print('tested', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, end)\nprint('up', flush=True)\ntime.sleep(60)"
    )
    deaf = tests.replace("0.5", "60")
    leader = supervise(STAYS)
    evaluators = [
        supervise([*PYTHON, code], name=f"evaluator-{i}", job="evaluator")
        for i, code in enumerate([tests, deaf])
    ]
    actor = supervise([*PYTHON, tests], name="actor-0", job="actor")
    for each in (leader, *evaluators, actor):
        each.until_it_says("up")
    (leader.folder / "stop").write_text("save")
    assert (leader.wait(), evaluators[0].wait()) == (0, 0)
    assert "tested" in evaluators[0].log.read_text()
    actor.wait()
    assert "tested" not in actor.log.read_text()
    assert evaluators[1].state["state"] == "ending", "its five seconds are not over"
    (evaluators[1].folder / "stop").write_text("now")
    evaluators[1].wait()
    assert {each.state["state"] for each in evaluators} == {"stopped"}


def test_processes_on_hosts_without_learners_end_when_these_are_said_to_have_ended(
    supervise, tmp_path
):
    actor = supervise(STAYS, name="actor-0", job="actor", lease_secs=0.0)
    evaluator = supervise(STAYS, name="evaluator", job="evaluator", lease_secs=0.0)
    for each in (actor, evaluator):
        each.until_it_says("up")
    (tmp_path / "stop").write_text("ended")
    for each, number in ((actor, signal.SIGTERM), (evaluator, signal.SIGUSR1)):
        assert each.wait() == 0
        assert f"got {int(number)}" in each.log.read_text()


def test_no_supervisor_outlives_the_leaders(supervise):
    leader, actor = supervise(STAYS), supervise(STAYS, name="actor-0")
    for each in (leader, actor):
        each.until_it_says("up")
    processes = [each.state["process"] for each in (leader, actor)]
    leader.process.kill()
    leader.process.wait()
    assert actor.wait() == 0
    until(lambda: not any(map(is_alive, processes)))


def test_one_whose_state_folder_is_gone_saves_and_ends(supervise):
    leader = supervise(STAYS)
    leader.until_it_says("up")
    shutil.rmtree(leader.folder)
    assert leader.wait() == 0


@pytest.mark.parametrize("text", ["'x' * 10000", "'x' * 80 + chr(10)"], ids=["a line", "lines"])
def test_one_that_prints_without_end_is_still_heard_and_obeys(supervise, tmp_path, text):
    told = supervise([*PYTHON, f"import os\nwhile True: os.write(1, ({text}).encode())"])
    first = told.until("running")["time"]
    until(lambda: told.state["time"] > first + 1)
    (tmp_path / "stop").write_text("save")
    with within(3):
        told.wait()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log*")) < 3 * 2**20


def test_what_a_process_leaves_behind_ends_with_it(supervise):
    told = supervise(["sh", "-c", "setsid sleep 50 & echo $! ; sleep 0.3"])
    assert told.wait() == 0
    left = int(re.search(r"^\d+$", told.log.read_text(), re.MULTILINE)[0])
    assert not start_time(left)


def test_a_long_log_begins_anew_and_the_one_before_is_kept(supervise):
    told = supervise([*PYTHON, "for i in range(40000): print(i, 'x' * 40)"], log_max_mb=1.0)
    assert told.wait() == 0
    kept = told.log.with_name("learners.log.1")
    assert told.log.stat().st_size < 1.2 * 2**20
    whole = kept.read_text() + told.log.read_text()
    assert len(re.findall(r"^\d+ x+$", whole, re.MULTILINE)) == 40000, "no line is lost or cut"


def test_a_second_supervisor_of_the_same_process_goes_away(supervise, tmp_path):
    first = supervise(STAYS)
    first.until_it_says("up")
    second = supervise(STAYS)
    assert second.wait() == 2
    assert "learners already has a supervisor" in second.shown()
    assert first.process.poll() is None


def test_the_last_words_are_the_first_traceback_without_what_others_say_after_it():
    lines = [
        *("a", "Traceback (most recent call last):", '  File "x", line 1', "    f()"),
        *("ValueError: no", "----", "prterun noticed that process rank 1 exited"),
    ]
    assert error_lines(lines) == lines[1:5]
    assert error_lines(["a", "[learner 1] error: taken", "b"]) == ["[learner 1] error: taken"]
    assert error_lines([*"abcdefgh"]) == [*"defgh"]
    assert error_lines([]) == []


@pytest.mark.parametrize(("reports", "state"), [("{}", "failed"), ('{"ended": true}', "ended")])
def test_an_mpirun_that_reaches_other_hosts_succeeds_only_if_learner_0_reports_its_end(
    supervise, reports, state
):
    """Open MPI 5 exits with code 0 also if it lost a host."""
    command = ["sh", "-c", f"echo '{reports}' >$IMPALA_MM_LEARNER_HOSTS"]
    learners = supervise(command, environment={"IMPALA_MM_MPI_PORTS": "{}"})
    assert learners.wait() == (state == "failed")
    assert learners.state["state"] == state


# Reports its address, then prints its flags and ends with the code in the file `code`, if it is
# there when it starts; with the word `early` in it, before the report.
REPORTS = [
    *PYTHON,
    "import os, sys, time\n"
    "told = open('code').read().split() if os.path.exists('code') else []\n"
    "print(sys.argv[1:])\n"
    "if 'early' in told:\n"
    "    sys.exit(int(told[0]))\n"
    "with open(os.environ['IMPALA_MM_LEARNER_HOSTS'], 'w') as file:\n"
    '    file.write(\'{"learner_hosts": ["a:8003", "b:8001"]}\')\n'
    "time.sleep(0.3)\n"
    "sys.exit(int(told[0])) if told else time.sleep(60)",
    *("--learner_hosts=a:0,b:0", ":", "--learner_hosts=a:0,b:0"),
]


def test_restarted_learners_get_the_addresses_that_they_reported(supervise):
    told = supervise(REPORTS, restarts=5)
    hosts = ["a:8003", "b:8001"]
    until(lambda: told.state.get("learner_hosts") == hosts)
    os.kill(told.state["process"][0], signal.SIGKILL)
    given = "--learner_hosts=a:8003,b:8001"
    told.until_it_says(str([given, ":", given]))
    assert told.log.read_text().splitlines()[0] == str(REPORTS[-3:]), "as the user asked, at first"
    assert told.state["learner_hosts"] == hosts, "known to readers all the time"


@pytest.mark.slow
def test_a_restart_that_finds_the_port_taken_is_tried_again(supervise, tmp_path):
    """A refusal (code 2) is no mistake in flags with which the learners have been running."""
    told = supervise(REPORTS, restarts=5)
    until(lambda: told.state.get("learner_hosts"))
    (tmp_path / "code").write_text("2 early")
    os.kill(told.state["process"][0], signal.SIGKILL)
    until(lambda: told.state["restarts"] == 2)
    (tmp_path / "code").unlink()
    until(lambda: told.state["restarts"] >= 2 and told.state["state"] == "running")


@pytest.mark.parametrize("code", ["2 early", "2"])
def test_a_refusal_at_the_first_start_or_after_the_report_is_final(supervise, tmp_path, code):
    (tmp_path / "code").write_text(code)
    told = supervise(REPORTS, restarts=5)
    assert told.wait() == 2
    assert (told.state["state"], told.state["restarts"]) == ("failed", 0)
