"""tmux windows are views: whatever is closed or killed, the run and all its processes continue."""

import os
import shutil
import signal

import pytest
from supervising import until

from launcher.supervise.procfs import is_alive

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="there is no tmux here")
NAMES = ["learners", "actor-0", "actor-1"]


def _windows(cluster):
    """Return "NAME PANE_DEAD" of each window of the run."""
    printed = cluster.tmux("list-windows", "-t", "=impala", "-F", "#{window_name} #{pane_dead}")
    return sorted(printed.splitlines())


def _kill_server(cluster):
    server = int(cluster.tmux("display-message", "-p", "-t", "=impala:", "#{pid}"))
    os.kill(server, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{server}"))


@pytest.mark.slow  # test_window closes terminals
def test_closed_windows_cost_no_process_and_status_and_attach_open_them_again(cluster):
    frontend = cluster.start(cluster.rows())
    frontend.until("Ctrl-C saves")
    processes = [cluster.process(name) for name in NAMES]
    all_open = sorted(f"{name} 0" for name in NAMES)
    assert _windows(cluster) == all_open
    cluster.tmux("kill-window", "-t", "=impala:=actor-0")
    assert _windows(cluster) == ["actor-1 0", "learners 0"]
    assert cluster.run("--status", "--json")[0] == 0
    assert len(_windows(cluster)) == 2, "only a person needs windows"
    assert cluster.run("--status")[0] == 0
    assert _windows(cluster) == all_open
    viewer = int(cluster.tmux("list-panes", "-t", "=impala:=actor-1", "-F", "#{pane_pid}"))
    os.kill(viewer, signal.SIGKILL)
    until(lambda: "actor-1 1" in _windows(cluster))
    cluster.run("--status")
    assert _windows(cluster) == all_open
    for close in (lambda _: cluster.tmux("kill-session", "-t", "=impala"), _kill_server):
        close(cluster)
        assert _windows(cluster) == []
        assert cluster.run("--status")[0] == 0
        assert _windows(cluster) == all_open
    until(lambda: "up" in cluster.tmux("capture-pane", "-p", "-t", "=impala:=actor-1"))
    assert all(map(is_alive, processes))
    assert {p["state"] for p in cluster.status()["processes"]} == {"running"}
    frontend.process.send_signal(signal.SIGHUP)  # detaches
    assert frontend.wait(10) == 0
    cluster.tmux("kill-server")
    follower = cluster.start_following()
    follower.until("impala: running; `d` detaches")
    assert _windows(cluster) == all_open
    cluster.tmux("kill-server")
    until(lambda: cluster.tmux("new-session", "-d", "-s", "impala") or _windows(cluster))
    assert (
        "tmux cannot show the processes: tmux has a session named impala that no run made"
        in (cluster.run("--status")[1])
    )
    assert len(_windows(cluster)) == 1
    follower.process.send_signal(signal.SIGINT)
    assert follower.wait(20) == 130


def test_ctrl_c_twice_in_a_window_stops_an_actor_or_saves_and_stops_the_run(cluster):
    frontend = cluster.start(cluster.rows())
    actor, other = (cluster.process(name) for name in NAMES[1:])
    cluster.process("learners")

    def shows(name, text):
        target = f"=impala:={name}"
        return lambda: text in cluster.tmux("capture-pane", "-p", "-J", "-t", target)

    def press_ctrl_c(name):
        cluster.tmux("send-keys", "-t", f"=impala:={name}", "C-c")

    until(shows("actor-0", "up"))
    press_ctrl_c("actor-0")
    until(shows("actor-0", "-- Ctrl-C again within 5 s stops actor-0 for good, and the run"))
    assert is_alive(actor)
    press_ctrl_c("actor-0")
    until(shows("actor-0", "-- actor-0: stopped --"))
    assert not is_alive(actor)
    assert is_alive(other)
    assert cluster.status("learners")["state"] == "running"
    press_ctrl_c("learners")
    until(shows("learners", "-- Ctrl-C again within 5 s saves and stops the run --"))
    press_ctrl_c("learners")
    assert frontend.wait(20) == 0
    assert "got SIGUSR1" in frontend.printed()
    assert not is_alive(other)
    until(lambda: _windows(cluster) == sorted(f"{name} 1" for name in NAMES))
    until(shows("learners", "-- learners: stopped --"))
