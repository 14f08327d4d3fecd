"""Learners and actors in the foreground of a terminal: small programs under real supervisors."""

import contextlib
import json
import os
import re
import signal
import sys
import time

import pytest
from processes import Process
from supervising import until

from launcher.supervise.procfs import descendants, start_time

# What experiment.py does: its arguments are JSON of the learners' command and the others'.
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
from impala_mm.config import messages
from launcher.supervise import foreground
learners, others, folder = json.loads(sys.argv[1])
signals = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: signals.append(number))
local_run = foreground.LocalRun(
    learners, others, dict(os.environ), Path(folder), 1.0, messages.log_line
)
code = foreground.run(local_run, signals)
sys.exit(128 + signals[0] if code is None else code)
"""
PYTHON = [sys.executable, "-uSc"]
BEATS = "import os; open(os.environ['IMPALA_MM_HEARTBEAT'], 'w').write('{}'); "
# Reports its address, as every learner does before it loads TensorFlow.
REPORTS = (
    "import os; open(os.environ['IMPALA_MM_LEARNER_HOSTS'], 'w').write("
    """'{"learner_hosts": ["a:8003", "b:8001"]}')\n"""
)
# Trains, with something to save: SIGUSR1 saves and ends it, SIGTERM ends it at once.
LEARNER = (
    BEATS + "import signal, sys, time\n"
    "def save(*_):\n    print('saved'); sys.exit(0)\n"
    "signal.signal(signal.SIGUSR1, save)\n"
    "open('{folder}/metrics.jsonl', 'w').write('{{}}')\n"
    "print('trains')\n"
    "time.sleep(60)"
)
ACTOR = "import time; print('acts'); time.sleep(60)"
# Ends once the test says so.
WAITS = "import os, time\nwhile not os.path.exists('{folder}/go'): time.sleep(0.02)\n"


@pytest.fixture
def begin(tmp_path):
    """Start a run of a learner and actors that are given as programs of Python."""

    def start(learner, *actors, shell=(), flags=(), reports=REPORTS, **others):
        learner = reports + learner.replace("{folder}", str(tmp_path)).replace("{{}}", "{}")
        others |= {f"actor-{number}": actor for number, actor in enumerate(actors)}
        others = {name: [*PYTHON, other, *flags] for name, other in others.items()}
        commands = [[*PYTHON, learner], others, str(tmp_path)]
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        arguments = (sys.executable, "-c", PROGRAM, json.dumps(commands))
        program = Process(*shell, *arguments, TMPDIR=str(temporary))
        program.temporary = temporary
        return program

    return start


def _states(run):
    return {path.parent.name: path for path in run.temporary.glob("*/*/state.json")}


def _processes(run, name):
    """Return the pids of a process and of its supervisor."""
    state = until(lambda: _read(run, name).get("process") and _read(run, name))
    return state["process"][0], state["supervisor"][0]


def _read(run, name):
    path = _states(run).get(name)
    return json.loads(path.read_text()) if path else {}


def _everything(run):
    """Return the pids of all processes below the one in the foreground, once all of them run."""
    for name in ("learners", "actor-0"):
        _processes(run, name)
    return descendants(run.process.pid)


def _until_gone(pids, seconds=6.0):
    until(lambda: not any(map(start_time, pids)), seconds)


def test_the_learners_output_and_exit_code_are_the_runs_and_actors_get_their_addresses(
    begin, tmp_path, monkeypatch
):
    monkeypatch.setenv("IMPALA_MM_HEARTBEAT", str(tmp_path / "beat"))  # the learners', not actors'
    shows = "import os, sys, time; print(os.environ['IMPALA_MM_HEARTBEAT'], sys.argv[1:]); "
    flags = ["--learner_hosts=localhost:0", "--task=0", "--learner_hosts=localhost:0"]
    run = begin(f"{shows}\n{WAITS}raise SystemExit(7)", f"{shows}time.sleep(60)", flags=flags)
    log = tmp_path / "actor-0.log"
    until(lambda: log.exists() and log.read_text())
    (tmp_path / "go").touch()
    assert run.wait(10) == 7
    assert run.printed() == f"{tmp_path}/beat []\n", "no line is added or printed twice"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["actor-0.log", "go", "tmp"]
    told = "--learner_hosts=a:8003,b:8001"
    actors, words = re.match(r"(\S+) (.*)\n", log.read_text()).groups()
    assert actors.endswith("/actor-0/beat")
    assert words == str([told, "--task=0", told])
    assert not list((tmp_path / "tmp").iterdir()), "the state folder is removed"


def test_ctrl_c_before_the_learners_report_their_addresses_starts_no_actor(begin, tmp_path):
    run = begin("print('waits'); import time; time.sleep(60)", ACTOR, reports="")
    run.until("waits")
    learner = _processes(run, "learners")
    assert list(_states(run)) == ["learners"]
    run.process.send_signal(signal.SIGINT)
    assert run.wait(10) == 130
    _until_gone(learner)
    assert not (tmp_path / "actor-0.log").exists()


def test_learners_that_fail_before_they_report_their_addresses_end_the_run(begin):
    run = begin("print('error: taken'); raise SystemExit(2)", ACTOR, reports="")
    assert run.wait(10) == 2
    assert run.printed() == "error: taken\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_save_and_stop_all(begin, number, code):
    run = begin(LEARNER, ACTOR)
    run.until("trains")
    pids = _everything(run)
    (folder,) = run.temporary.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert not list(folder.glob("*/task.json")), "they hold the environment"
    run.process.send_signal(number)
    assert run.wait(10) == code
    _until_gone(pids)
    assert "saved\n" in run.printed()
    assert "the run saves and stops; Ctrl-C again ends it at once\n" in run.printed()


def test_ctrl_c_before_there_is_anything_to_save_ends_at_once(begin):
    run = begin("print('loads'); import time; time.sleep(60)", ACTOR)
    run.until("loads")
    pids = _everything(run)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(4) == 130
    _until_gone(pids)


def test_a_save_that_fails_is_the_runs_failure(begin):
    run = begin(LEARNER.replace("sys.exit(0)", "sys.exit(1)"), ACTOR)
    run.until("trains")
    run.process.send_signal(signal.SIGINT)
    assert run.wait(10) == 1
    assert "learners failed: it was asked to save, but exited with code 1" in run.printed()


def _block(path):
    """Make it impossible to write the file, as on a full disk."""

    def is_blocked():
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.mkdir()
        return path.is_dir()

    until(is_blocked)


@pytest.mark.slow
def test_ctrl_c_saves_although_the_temporary_folder_is_full(begin):
    run = begin(LEARNER, ACTOR)
    run.until("trains")
    pids = _everything(run)
    (folder,) = run.temporary.iterdir()
    _block(folder / "stop")
    _block(folder / "learners" / "state.json")
    run.process.send_signal(signal.SIGINT)
    assert run.wait(10) == 130
    _until_gone(pids)
    assert "saved\n" in run.printed()
    assert "Traceback" not in run.printed()


@pytest.mark.parametrize("full", [False, True])
def test_a_second_ctrl_c_ends_all_at_once_also_if_the_temporary_folder_is_full(begin, full):
    run = begin(LEARNER.replace("sys.exit(0)", "time.sleep(60)"), ACTOR)
    run.until("trains")
    pids = _everything(run)
    (folder,) = run.temporary.iterdir()
    run.process.send_signal(signal.SIGINT)
    run.until("saved")
    if full:
        _block(folder / "stop")
    run.process.send_signal(signal.SIGINT)
    assert run.wait(10) == 130
    _until_gone(pids)


def test_a_closed_stdout_does_not_send_the_output_into_another_file(begin, tmp_path):
    shell = ("bash", "-c", 'exec "$@" >&- 2>&-', "bash")
    run = begin(f"print('x' * 1000)\n{WAITS}", ACTOR, shell=shell)
    _everything(run)
    time.sleep(0.5)
    [lock] = run.temporary.glob("*/learners/lock")
    assert lock.stat().st_size == 0
    (tmp_path / "go").touch()
    assert run.wait(10) == 0


def test_an_actor_that_crashes_is_restarted_and_the_screen_says_why(begin):
    """It crashes in compiled code: the user's lines are shown, without control characters."""
    crashes = (
        "print('Fatal Python error: Segmentation fault\\n\\n"
        "Current thread 0x7f:\\n  File \\x1b]0;title\\x07step.py\\n\\n"
        "Extension modules: numpy'); raise SystemExit(3)"
    )
    run = begin(LEARNER, crashes)
    for wait in ("1", "2"):
        run.until(
            rf"actor-0 failed: it exited with code 3; it will be restarted in {wait} s "
            r"\(last line: Fatal Python error: Segmentation fault\)\n"
        )
    assert r"\x1b]0;title\x07step.py" in run.printed()
    assert "\x1b" not in run.printed()
    assert "numpy" not in run.printed()
    assert run.process.poll() is None


def test_an_actor_that_crashed_20_times_is_not_restarted_and_the_run_continues(begin, tmp_path):
    run = begin(LEARNER, "raise SystemExit(3)", ACTOR)
    run.until("trains")
    state = until(lambda: _read(run, "actor-0").get("restarts") and _read(run, "actor-0"))
    assert state["restarts"] < 20
    # Twenty crashes take eight minutes: a supervisor that has counted them says this.
    state |= {"state": "failed"}
    state["failure"] |= {"time": 0.0, "next": "it crashed 20 times and will not be restarted"}
    os.kill(state["supervisor"][0], signal.SIGKILL)
    until(lambda: not start_time(state["supervisor"][0]))
    _states(run)["actor-0"].write_text(json.dumps(state))
    run.until("actor-0 crashed 20 times and will not be restarted")
    assert run.process.poll() is None


@pytest.mark.slow
def test_a_run_whose_actors_have_all_failed_for_good_saves_and_ends(begin, tmp_path):
    refuses = "import time; time.sleep(0.5); print('error: no mask'); raise SystemExit(2)"
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    run = begin(LEARNER, refuses, refuses)
    assert run.wait(30) == 2, "a mistake of the user"
    printed = run.printed()
    first, second = re.findall(r"(actor-\d) failed.*; it will not be restarted", printed)
    assert f"{first} failed: error: no mask; " in printed
    assert f"{second} failed as {first} did; " in printed
    assert f"since no actor is left; the same flags with --logdir={tmp_path} resume" in printed
    assert printed.endswith("saved\n")


def test_a_users_mistake_is_printed_once_although_actors_make_it_too(begin):
    refused = "import sys, time; time.sleep({}); print('error: no such level'); sys.exit(2)"
    run = begin(refused.format(1), refused.format(0))
    assert run.wait(10) == 2
    assert run.printed() == "error: no such level\n"


def test_a_learner_that_is_killed_ends_the_run_and_says_so(begin):
    run = begin(LEARNER, ACTOR)
    run.until("trains")
    pids = _everything(run)
    os.kill(_processes(run, "learners")[0], signal.SIGKILL)
    assert run.wait(10) == 137
    _until_gone(pids)
    assert re.search(r"killed by SIGKILL; the same flags with --logdir=/\S+ ", run.printed())


@pytest.mark.parametrize("who", ["parent", "supervisor"])
def test_kill_9_leaves_no_process_of_the_run(begin, who):
    """Not even what a learner started and left, as mpirun's ranks when mpirun is killed."""
    run = begin("import subprocess\nsubprocess.Popen(['setsid', 'sleep', '61'])\n" + LEARNER, ACTOR)
    run.until("trains")
    pids = _everything(run)
    assert len(pids) >= 5, "two supervisors, a learner with its child, an actor"
    if who == "parent":
        run.kill()
        until(lambda: not list(run.temporary.iterdir()), 6)
    else:
        os.kill(_processes(run, "learners")[1], signal.SIGKILL)
        assert run.wait(10) != 0
        assert "the learners' supervisor was killed by SIGKILL; " in run.printed()
    _until_gone(pids)


# As an evaluator, it tests the last checkpoint after SIGUSR1.
TESTS = (
    "import signal, sys, time\n"
    "def test(*_):\n    {}; print('tested'); sys.exit(0)\n"
    "signal.signal(signal.SIGUSR1, test)\n"
    "print('waits')\n"
    "time.sleep(60)"
)


def test_an_evaluator_tests_the_last_checkpoint_although_the_learners_have_ended(begin):
    run = begin(f"{WAITS}raise SystemExit(7)", evaluator=TESTS.format("time.sleep(4)"))
    run.until("waits")
    (run.temporary.parent / "go").touch()
    assert run.wait(15) == 7
    assert run.printed() == "waits\ntested\n"


def test_ctrl_c_ends_an_evaluator_that_would_test_the_last_checkpoint(begin):
    run = begin(WAITS, evaluator=TESTS.format("print('tests'); time.sleep(60)"))
    run.until("waits")
    pids = _processes(run, "evaluator")
    (run.temporary.parent / "go").touch()
    run.until("tests")
    run.process.send_signal(signal.SIGINT)
    assert run.wait(10) == 0, "the learners have ended as they should"
    _until_gone(pids)
