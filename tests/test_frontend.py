"""Tests of the frontend with real tmux windows, supervisors and signals.

Most of the processes that it starts are stand-ins for experiment.py.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import termios
import time

import pytest
from cluster import FRONTEND
from deadlines import within
from processes import Process, free_port, run
from supervising import until

from launcher.supervise.json_files import read_json
from launcher.supervise.procfs import is_alive, start_time

needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="there is no tmux here")


@needs_tmux
def test_a_run_has_a_window_for_each_process_and_ctrl_c_saves_and_stops_it(cluster):
    # A tmux server of an earlier login has an environment of its own.
    subprocess.run(
        ["tmux", "new-session", "-d", "-s", "old", "sleep 60"],
        env=os.environ | cluster.environment | {"TOLD": "by the old server"},
        check=True,
    )
    frontend = cluster.start(cluster.rows(), "--env", "MORE=a 'b", "--seed=7", TOLD="by the user")
    frontend.until("impala: started 3 processes in ")
    told = {name: cluster.told(name) for name in ("learners", "actor-0", "actor-1")}
    for each in told.values():
        assert each["flags"]["logdir"] == str(cluster.logdir)
        assert each["flags"]["seed"] == "7"
        assert each["environment"]["TOLD"] == "by the user"
        assert each["environment"]["MORE"] == "a 'b"

    def windows():
        format = "#{window_name} #{pane_dead}"
        return cluster.tmux("list-windows", "-t", "impala", "-F", format).splitlines()

    assert windows() == ["learners 0", "actor-0 0", "actor-1 0"]
    frontend.until(r"\nup\n")
    frontend.process.send_signal(signal.SIGINT)
    assert frontend.wait(20) == 130
    assert "got SIGUSR1" in frontend.printed(), "the learners' log is printed by the frontend"
    # The windows of ended processes are kept.
    until(lambda: windows() == ["learners 1", "actor-0 1", "actor-1 1"])
    assert "got SIGTERM" in cluster.tmux("capture-pane", "-p", "-t", "impala:actor-1")
    assert {p["state"] for p in cluster.status()["processes"]} == {"stopped"}
    assert cluster.tmux("has-session", "-t", "old") == ""


def test_a_run_is_shown_followed_and_stopped_from_another_terminal(cluster):
    rows = cluster.rows()
    frontend = cluster.start(rows)
    processes = [cluster.process(name) for name in ("learners", "actor-0", "actor-1")]
    for again in ("--tmux_sess=impala", f"--logdir={cluster.logdir}"):
        code, printed = cluster.ask(rows, "--skip_check", again)
        assert (code, printed.count("\n")) == (2, 1)
        assert "--stop --tmux_sess=impala ends it" in printed

    os.kill(processes[1][0], signal.SIGKILL)
    known = until(lambda: (found := cluster.status("actor-0"))["restarts"] and found, 5)
    assert known["failure"]["why"] == "it was killed by SIGKILL"
    frontend.until(r"actor-0 on localhost failed: it was killed by SIGKILL\n", 5)
    until(lambda: cluster.status("actor-0")["state"] == "running")

    known = cluster.status()
    assert (known["name"], known["state"], known["logdir"]) == (
        *("impala", "running"),
        str(cluster.logdir),
    )
    assert (known["frames"], known["verdict"]) == (1000, "all is well")
    assert all(p["memory"] is not None for p in known["processes"] if p["up"] > 5)
    code, table = cluster.run("--status")
    assert code == 0
    assert "1,000 frames | 10/s" in table
    assert re.search(r"actor-0 +localhost +running .* 1  ", table)

    follower = Process(*FRONTEND, "--logs=actor-1", **cluster.environment)
    follower.until(r"told .*\nup\n")
    code, printed = cluster.ask("--logs=actor-7")
    assert code == 2
    assert "--logs=actor-7: no such process; choose one of learners, actor-0, actor-1" in printed

    code, printed = cluster.run("--stop")
    assert code == 0
    follower.until(r"got SIGTERM")
    assert follower.wait(10) == 0
    assert frontend.wait(10) == 0, "the frontend exits when another stops the run"
    assert "got SIGUSR1" in (cluster.logdir / "learners.log").read_text()
    assert not any(map(is_alive, processes))
    assert not cluster.state.exists(), "the run's token is removed, too"
    for flag in ("--stop", "--status", "--logs=learners"):
        assert cluster.ask(flag) == (2, "error: there is no run named impala\n")


def test_actors_start_once_the_learners_have_reported_the_ports_that_they_chose(cluster):
    learner, actor = (f"{job},localhost,,{cluster.program}" for job in ("learner", "actor"))
    rows = cluster.csv(learner, actor, f"evaluator,localhost,,{cluster.program}", actor)
    frontend = cluster.start(rows, TOLD="late")
    cluster.process("evaluator")
    assert [p["name"] for p in cluster.status()["processes"]] == ["learners", "evaluator"]
    code, printed = cluster.ask(rows, "--apply")
    assert code == 2
    assert "another frontend is starting or changing impala" in printed
    (cluster.logdir / "go").touch()
    frontend.until("impala: started 4 processes in ")
    told = {name: cluster.told(name) for name in ("learners", "actor-0", "actor-1")}
    hosts = [each["flags"]["learner_hosts"] for each in told.values()]
    assert hosts == ["localhost:0", "localhost:8001", "localhost:8001"]
    record = read_json(cluster.state / "run.json")
    assert {e["environment"]["IMPALA_MM_START"] for e in told.values()} == {record["id"]}
    assert record["flags"]["learner_hosts"] == "localhost:8001"
    names = [p["name"] for p in cluster.status()["processes"]]
    assert names == ["learners", "actor-0", "actor-1", "evaluator"]


@pytest.mark.slow
def test_the_wait_for_the_learners_ports_ends_with_the_run_and_outlives_its_frontend(cluster):
    learner, actor = (f"{job},localhost,,{cluster.program}" for job in ("learner", "actor"))
    rows = cluster.csv(learner, actor)

    def reporting():
        code, printed = cluster.ask("--status", "--json")  # code 2 until the new run is recorded
        return code == 0 and '"last": "reporting"' in printed

    frontend = cluster.start(rows, TOLD="late")
    frontend.until("the actors wait for the learners", 20)
    frontend.process.send_signal(signal.SIGINT)
    assert frontend.wait(20) == 130
    assert not (cluster.logdir / "actor-0.log").exists()

    frontend = cluster.start(rows, "--detach", TOLD="refuse")
    assert frontend.wait(20) == 1, "the frontend does not detach from a run that failed"
    assert "error: the learner cannot listen" in frontend.printed()

    frontend = cluster.start(rows, TOLD="late")
    until(reporting, 20)
    code, printed = cluster.run("--stop")
    assert code == 0, printed
    assert frontend.wait(20) == 0
    assert not cluster.state.exists()

    frontend = cluster.start(rows, TOLD="late")
    until(reporting, 20)
    frontend.kill()
    code, printed = cluster.ask(rows, "--apply")
    assert code == 2
    assert "the learners of impala have not reported their ports yet" in printed
    (cluster.logdir / "go").touch()
    until(lambda: cluster.status("learners")["last"] == "up", 20)
    follower = Process(*FRONTEND, "--attach", **cluster.environment)
    follower.until("the actors were not started")
    assert "impala: 1 actor added, 0 removed" in cluster.run(rows, "--apply")[1]
    assert cluster.told("actor-0")["flags"]["learner_hosts"] == "localhost:8001"


def test_the_error_of_each_process_is_printed_by_the_frontend(cluster):
    flags = ("--max_restarts=1", "--mirror_logdir")
    frontend = cluster.start(cluster.rows(actors=1), *flags, TOLD="fail")
    frontend.until("--mirror_logdir: nothing to mirror, as the learners write to this machine")
    frontend.until(
        r"actor-0 on localhost failed: it exited with code 1\n"
        r"    Traceback .*\n(    .*\n)+    ValueError: an actor that fails\n"
        r"  it will be restarted in 0\.5 s; log: .*actor-0\.log\n",
        10,
    )
    frontend.until(r"actor-0 on localhost failed 2 times: .*\n(    .*\n)+  it crashed 2 times", 10)


def test_learners_whose_supervisor_was_killed_are_restarted_with_restart_learners(cluster):
    def kill_supervisor():
        state = until(lambda: read_json(cluster.state / "learners" / "state.json"))
        os.kill(state["supervisor"][0], signal.SIGKILL)

    frontend = cluster.start(cluster.rows(), "--restart_learners")
    names = ("learners", "actor-0", "actor-1")
    before = [cluster.process(name) for name in names]
    frontend.until("Ctrl-C saves")
    kill_supervisor()
    frontend.until("restarting the learners on localhost from the last checkpoint")
    frontend.until("this machine: restarted actor-0, actor-1", 20)
    until(lambda: {p["state"] for p in cluster.status()["processes"]} == {"running"}, 20)
    after = [cluster.process(name) for name in names]
    assert not any(map(is_alive, before))
    assert all(map(is_alive, after))
    frontend.process.send_signal(signal.SIGINT)
    assert frontend.wait(20) == 130

    frontend = cluster.start(cluster.rows())
    frontend.until("Ctrl-C saves")
    kill_supervisor()
    assert frontend.wait(30) == 1
    assert "error: the learners' supervisor was killed" in frontend.printed()


def test_a_run_keeps_running_after_its_frontend_was_killed_even_while_starting(cluster):
    rows = cluster.rows(actors=8)
    frontend = cluster.start(rows)
    until((cluster.state / "learners" / "state.json").exists)
    frontend.kill()
    learner = cluster.process("learners")
    assert cluster.status()["state"] == "running"
    code, printed = cluster.run("--stop")
    assert code == 0, printed
    assert not is_alive(learner)

    frontend = cluster.start(rows)
    frontend.until("Ctrl-C saves")
    learner = cluster.process("learners")
    frontend.process.send_signal(signal.SIGHUP)  # as when its terminal is closed
    assert frontend.wait(5) == 0
    assert "the run keeps running" in frontend.printed()
    assert is_alive(learner)


def test_d_detaches_and_the_run_keeps_running(cluster):
    ours, theirs = pty.openpty()
    frontend = subprocess.Popen(
        [*FRONTEND, cluster.rows(actors=1), "--skip_check", f"--logdir={cluster.logdir}"],
        env=os.environ | cluster.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - its own terminal
    )
    learner = cluster.process("learners")
    until(lambda: not termios.tcgetattr(theirs)[3] & termios.ICANON)  # then it reads keys
    os.write(ours, b"d")
    printed = b""
    while b"the run keeps running" not in printed:  # the terminal's buffer holds 4 kB
        printed += os.read(ours, 1 << 16)
    assert frontend.wait(10) == 0
    assert termios.tcgetattr(theirs)[3] & termios.ICANON, "the terminal's settings are restored"
    assert is_alive(learner)
    assert cluster.status()["controller"]["state"] == "running"


def test_detach_leaves_a_controller_that_restarts_what_fails_and_ends_last(cluster):
    code, printed = cluster.run(
        cluster.rows(actors=1), "--skip_check", f"--logdir={cluster.logdir}", "--detach"
    )
    assert code == 0, printed
    number = int(re.search(r"\ncontroller: process (\d+) on \S+, for ", printed)[1])
    controller = [number, start_time(number)]
    assert os.getsid(number) == number, "a session of its own"
    first = cluster.process("actor-0")
    state = json.loads((cluster.state / "actor-0" / "state.json").read_text())
    os.kill(state["supervisor"][0], signal.SIGKILL)
    until(lambda: cluster.process("actor-0") != first, 20)
    log, said = cluster.logdir / "controller.log", "restarted actor-0, whose supervisor was killed"
    until(lambda: f"this machine: {said}\n" in log.read_text())
    assert is_alive(controller)
    assert f"\ncontroller: process {number} on " in cluster.run("--status")[1]
    code, printed = cluster.run("--stop")
    assert code == 0, printed
    assert not is_alive(controller)
    assert not cluster.state.exists()


@pytest.mark.slow  # test_remembered has the flag
def test_a_frontend_detaches_from_a_run_without_a_controller_if_it_is_asked_to(cluster):
    code, printed = cluster.run(
        *(cluster.rows(actors=1), "--skip_check", f"--logdir={cluster.logdir}"),
        *("--detach", "--controller=none"),
    )
    assert code == 0, printed
    assert "controller" not in printed
    assert cluster.status()["controller"] is None
    code, printed = cluster.ask("--attach", "--controller=10.0.0.5")
    assert code == 2
    assert "--controller=10.0.0.5: it must be here or none" in printed
    code, printed = cluster.ask("--fetch")
    assert code == 0
    assert printed.startswith("nothing to download")


@pytest.mark.slow
@needs_tmux
def test_stop_ends_a_run_whose_frontend_was_killed_at_any_moment_of_its_start(cluster):
    rows = cluster.rows(actors=12)
    for after in (0.0, 0.02, 0.05, 0.1, 0.2):
        frontend = cluster.start(rows)
        until((cluster.state / "run.json").exists)
        time.sleep(after)
        frontend.kill()
        with within(15):
            code, printed = cluster.run("--stop")
        assert code == 0, printed
        assert not cluster.state.exists()
    assert "impala" not in cluster.tmux("list-sessions")


@pytest.mark.slow  # a single stop is tested above
def test_two_stops_at_once_and_the_following_frontend_all_succeed(cluster):
    frontend = cluster.start(cluster.rows(actors=1))
    cluster.process("learners")
    cluster.process("actor-0")
    # The run cannot end before both have begun, however long their programs take to start.
    state = json.loads((cluster.state / "learners" / "state.json").read_text())
    supervisor = state["supervisor"][0]
    os.kill(supervisor, signal.SIGSTOP)
    stops = [Process(*FRONTEND, "--stop", **cluster.environment) for _ in range(2)]
    for each in stops:
        each.until("impala: saving and stopping the learners")
    with contextlib.suppress(ProcessLookupError):  # on a busy machine a stop has lost patience
        os.kill(supervisor, signal.SIGCONT)
    assert [each.wait(20) for each in (*stops, frontend)] == [0, 0, 0]
    assert "error" not in frontend.printed()


@pytest.mark.slow  # test_follow has the reader that exits
def test_it_works_without_stdin_and_after_the_reader_of_stdout_has_exited(cluster):
    command = shlex.join([*FRONTEND, cluster.rows(actors=1), "--skip_check"])
    environment = {**cluster.environment, "A": "1"}
    flag = shlex.quote(f"--logdir={cluster.logdir}")
    # By then the frontend has nothing more to print.
    reader = "{ sleep 3; head -1; }"
    code, printed = run("bash", "-c", f"{command} {flag} <&- | {reader}", limit=60, **environment)
    assert (code, "Traceback" in printed) == (0, False)
    assert "started 2 processes" in printed
    assert cluster.status("actor-0")["state"] in ("starting", "running")
    logs = shlex.join([*FRONTEND, "--logs=learners"])
    code, printed = run("bash", "-c", f"{logs} | {reader}", limit=30, **environment)
    assert (code, "Traceback" in printed) == (0, False)
    printed = run("bash", "-c", f"{command} --dry_run 2>&1 | head -1", **environment)[1]
    assert len(printed.splitlines()) == 1


@pytest.mark.slow  # test_follow has it without processes
def test_ctrl_c_stops_a_run_although_it_ends_the_reader_of_its_output_too(cluster, tmp_path):
    """The terminal sends Ctrl-C to both programs of `frontend | cat`."""
    flags = [cluster.rows(actors=1), "--skip_check", f"--logdir={cluster.logdir}"]
    command = f"{shlex.join([*FRONTEND, *flags])} | cat >{shlex.quote(str(tmp_path / 'log'))}"
    frontend = Process("setsid", "bash", "-c", command, **cluster.environment)
    cluster.process("actor-0")
    os.killpg(frontend.process.pid, signal.SIGINT)
    frontend.wait(20)
    until(lambda: {p["state"] for p in cluster.status()["processes"]} == {"stopped"})
    assert "got SIGUSR1" in (cluster.logdir / "learners.log").read_text(), "it was told to save"


@needs_tmux
def test_a_tmux_session_that_no_run_created_is_left_alone(cluster):
    environment = os.environ | cluster.environment
    subprocess.run(["tmux", "new-session", "-d", "-s", "impala"], env=environment, check=True)
    flags = (cluster.rows(), "--skip_check", f"--logdir={cluster.logdir}", "--detach")
    code, printed = cluster.ask(*flags, "--tmux_sess=impala")
    assert code == 2
    assert "tmux has a session named impala that no run made" in printed
    code, printed = cluster.run(*flags)
    assert code == 0
    assert "this run is named impala-2\nimpala-2: started 3 processes in " in printed
    windows = cluster.tmux("list-windows", "-t", "=impala", "-F", "#{window_name}")
    assert windows.count("\n") == 1
    assert "learners" not in windows


def test_stop_reports_and_removes_a_run_that_a_reboot_ended(cluster):
    cluster.start(cluster.rows(), "--detach").wait(20)
    cluster.process("actor-1")
    cluster.run("--stop")
    sleeping = subprocess.Popen(["sleep", "60"])
    record = {
        **{"name": "impala", "id": "1", "time": time.time() - 9, "boot": "another", "socket": ""},
        **{"logdir": str(cluster.logdir), "flags": {}, "learners": [], "next_actor": 0},
        "processes": [{"name": "learners", "job": "learner", "host": "localhost"}],
    }
    recorded = [sleeping.pid, start_time(sleeping.pid) + 1]  # another process has got the same pid
    state = {"name": "learners", "job": "learner", "host": "localhost", "state": "running"}
    (cluster.state / "learners").mkdir(parents=True)
    (cluster.state / "run.json").write_text(json.dumps(record))
    (cluster.state / "learners" / "state.json").write_text(
        json.dumps(state | {"supervisor": recorded, "process": recorded})
    )
    try:
        (cluster.state / "run.json").write_text(json.dumps(record | {"started_from": "desk1"}))
        code, printed = cluster.ask("--stop")
        assert code == 2, printed
        assert "impala was started on desk1" in printed
        (cluster.state / "run.json").write_text(json.dumps(record))
        assert cluster.status()["state"] == "stale"
        code, printed = cluster.run("--stop")
        assert code == 0, printed
        assert "impala ended when this machine rebooted; removed its record" in printed
        assert sleeping.poll() is None
    finally:
        sleeping.kill()
        sleeping.wait()
    assert cluster.start(cluster.rows(), "--detach").wait(20) == 0


@pytest.mark.slow  # the supervisors are the same
def test_without_tmux_processes_run_in_the_background(cluster, tmp_path):
    beside = tmp_path / "bin"
    beside.mkdir()
    for tool in ("sh", "bash"):
        (beside / tool).symlink_to(shutil.which(tool))
    frontend = cluster.start(cluster.rows(actors=1), PATH=str(beside))
    frontend.until("tmux is not installed on this machine")
    actor = cluster.process("actor-0")
    frontend.process.send_signal(signal.SIGINT)
    assert frontend.wait(20) == 130
    assert not is_alive(actor)


def test_apply_adds_and_removes_actors_so_that_they_match_the_csv(cluster):
    learner = f"learner,localhost,,{cluster.program},,"
    columns = "job,ip,tf_port,python,count,num_envs"
    plain, wide = (f"actor,localhost,,{cluster.program},{more}" for more in ("2,", "1,8"))
    rows = cluster.csv(learner, plain, columns=columns)
    assert cluster.start(rows, "--detach", "--env=GIVEN=at the start").wait(20) == 0
    first = [cluster.process(name) for name in ("actor-0", "actor-1")]
    cluster.csv(learner, f"actor,localhost,,{cluster.program},1,", wide, wide, columns=columns)
    code, printed = cluster.run(rows, "--apply", "--seed=9")
    assert code == 0, printed
    assert "note: --seed remains its default" in printed
    assert "impala: 2 actors added, 1 removed" in printed
    told = cluster.told("actor-3")["flags"]
    assert told["learner_hosts"] == "localhost:8001", "the port that the learner has reported"
    assert told == cluster.told("actor-0")["flags"] | {"task": "3", "num_envs": "8"}
    assert "seed" not in told
    assert cluster.told("actor-3")["environment"]["GIVEN"] == "at the start"
    until(lambda: cluster.status("actor-1")["state"] == "stopped")
    assert not is_alive(first[1])
    assert is_alive(first[0])
    states = {p["name"]: p["state"] for p in cluster.status()["processes"]}
    assert states.pop("actor-1") == "stopped"
    assert states == dict.fromkeys(["learners", "actor-0", "actor-2", "actor-3"], "running")
    cluster.csv(learner, plain, wide, wide, columns=columns)
    assert "impala: 1 actor added, 0 removed" in cluster.run(rows, "--apply")[1]
    cluster.process("actor-4")  # the number of a removed actor is not used again
    cluster.csv(learner, f"learner,localhost,{free_port()},{cluster.program},,", columns=columns)
    code, printed = cluster.run(rows, "--apply")
    assert "note: --apply does not change learners" in printed
    assert "impala: 0 actors added, 4 removed" in printed
    code, printed = cluster.ask("--apply")
    assert code == 2
    assert "--apply needs the changed CSV" in printed
