"""What takes a controller's orders on a host, and the channel of a controller to it."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from supervising import until

from impala_mm.runtime import certificates
from launcher.node import order_channel, procfs, programs
from launcher.node.controlled_node import ControlledNode
from launcher.node.local_node import LocalNode
from launcher.node.run_registry import Record, Run, RunInUse, boot_id, remote_runs_folder
from launcher.node.task import Task, read_json, write_json
from launcher.remote.order_link import OrderLink
from launcher.remote.remote_node import HostUnavailable, OperationFailed, RemoteNode
from launcher.ssh.ssh_config import Settings, Target

ROLES = order_channel.CONTROL_ROLES


class Host:
    """A host with a run of one actor, which sleeps, and a server."""

    def __init__(self, folder):
        self.content = certificates.make(ROLES)
        parts = certificates.by_role(self.content, ROLES)
        self.credentials = parts[order_channel.CONTROLLER]
        self.run = Run("impala", remote_runs_folder())
        self.run.create_state("token")
        record = {"name": "impala", "id": "start-1", "time": 0.0, "logdir": str(folder)}
        record |= {"boot": boot_id(), "socket": "", "processes": [], "flags": {}, "learners": []}
        self.node = LocalNode(self.run)
        self.run.write_record(Record(**record | {"next_actor": 1}))
        self.log = folder / "actor-0.log"
        command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(99)"]
        task = Task("actor-0", "actor", "localhost", command, {"WORD": "planned"}, str(folder), "",
                    str(self.log), 1.0, "", 0.0, "", False, 0, 0.0, 1.0)  # fmt: skip
        entry = {"name": "actor-0", "job": "actor", "host": "localhost", "place": ""}
        self.node.start_processes(
            [task._replace(folder=str(self.run.folder))._asdict()],
            [entry | {"kind": {}, "log": str(self.log)}],
            keep_plan=True,
        )
        self.server = ControlledNode(self.node).start_order_server(
            {
                "address": "127.0.0.1",
                "credentials": parts[order_channel.SUPERVISOR],
                "start": "start-1",
                "lease_secs": 0.0,
            },
            term=1,
        )

    def link(self, term=1, **changes):
        return OrderLink("127.0.0.1", self.server | changes, self.credentials, term)

    def begin_term(self, term):
        task = {"start": "start-1"}
        assert ControlledNode(self.node).start_order_server(task, term) == self.server

    def controller(self):
        """Return the host as a controller has it."""
        node = RemoteNode("there", Target("127.0.0.1"), Settings(), [], lambda *_: self.link())
        node.connect("impala")
        return node

    def pid(self):
        state = read_json(self.run.folder / "actor-0" / "state.json")
        return state.get("state") == "running" and state["process"]

    def orders(self):
        log = self.run.folder / "orders.log"
        return log.read_text() if log.exists() else ""

    def server_process(self):
        return read_json(self.run.folder / "orders.json").get("supervisor")


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    made = Host(tmp_path)
    server = made.server_process()
    yield made
    made.node.request_stop("now")
    made.node.kill()
    if procfs.is_alive(server):
        os.kill(server[0], signal.SIGKILL)


def test_a_planned_process_is_started_again_and_nothing_else(host):
    first = until(host.pid)
    there = host.controller()
    assert there.call("has_start", start="start-1") is True
    assert there.call("restart", names=["actor-0"]) == [], "it is running"
    os.kill(read_json(host.run.folder / "actor-0" / "state.json")["supervisor"][0], signal.SIGKILL)
    until(lambda: host.node.states()["actor-0"]["state"] == "lost")
    until(lambda: not procfs.is_alive(first))
    assert there.call("restart", names=["actor-0", "actor-1"]) == ["actor-0"]
    second = until(lambda: (pid := host.pid()) and pid != first and pid)
    assert "WORD=planned" in Path(f"/proc/{second[0]}/environ").read_text().split("\0")
    assert (host.run.folder / "actor-0" / "plan.json").stat().st_mode & 0o777 == 0o600
    assert 'orders: restart {"names": ["actor-0", "actor-1"]}' in host.orders()
    there.call("request_stop", mode="now", name="actor-0")
    until(lambda: not procfs.is_alive(second))
    there.close()


def test_nothing_that_a_user_has_stopped_is_started_again(host):
    until(host.pid)
    there = host.controller()
    there.call("request_stop", mode="save", name="actor-0")
    until(lambda: host.node.states()["actor-0"]["state"] == "stopped")
    assert there.call("restart", names=["actor-0"]) == []
    (host.run.folder / "actor-0" / "stop").unlink()
    host.run.request_stop("save")
    for order in ({"op": "restart", "names": ["actor-0"]}, {"op": "restart_learners"}):
        with pytest.raises(OperationFailed, match="impala was stopped: nothing is started again"):
            there.call(**{"addresses": []} | order if "names" not in order else order)
    there.close()


def test_learners_are_restarted_at_their_ports_on_fewer_hosts_and_on_all_again(host, monkeypatch):
    started = []
    monkeypatch.setattr(host.node, "start_supervisors", lambda tasks, record: started.extend(tasks))
    node = ControlledNode(host.node)
    flag = "--learner_hosts=a:0,b:0,b:0"
    rank = ["experiment.py", flag]
    command = ["mpirun", "-np", "1", "--host", "a", *rank]
    for name in "bb":
        command += [":", "-np", "1", "--host", name, *rank]
    folder = host.run.folder / "learners"
    folder.mkdir()
    write_json(folder / "plan.json", {"name": "learners", "command": command})
    learners = {"name": "learners", "supervisor": None, "state": "lost"}
    states = {"learners": learners}
    monkeypatch.setattr(host.node, "states", lambda: states)
    node.restart_learners(["a", "b"])
    assert started[-1]["command"] == command, "they have reported no ports yet"
    learners["learner_hosts"] = ["a:8001", "b:8001", "b:8002"]
    node.restart_learners(["a"])
    ports = "--learner_hosts=a:8001"
    assert started[-1]["command"] == [*command[:5], "experiment.py", ports]
    learners["learner_hosts"] = ["a:8001"]  # as this start has reported
    node.restart_learners(["a", "b"])
    words = " ".join(started[-1]["command"])
    assert words.count("--learner_hosts=a:8001,b:8001,b:8002") == 3
    with pytest.raises(RunInUse, match="the host of the first learner has its checkpoints"):
        node.restart_learners(["b"])
    with pytest.raises(RunInUse, match="the learners were not planned for c"):
        node.restart_learners(["a", "c"])
    write_json(host.run.folder / "daemons.json", {"credentials": "c", "supervisors": {}})
    node.write_planned_mpirun_agent({"b": {"port": 7001, "id": "x"}})
    with pytest.raises(RunInUse, match="the learners' mpirun was planned for other hosts"):
        node.write_planned_mpirun_agent({"c": {"port": 7001, "id": "x"}})
    learners["supervisor"] = host.server_process()
    with pytest.raises(RunInUse, match="the learners are running"):
        node.restart_learners(["a", "b"])


def test_what_is_not_on_the_list_is_refused_and_logged(host):
    there = host.controller()
    for op, arguments in (
        ("run_program", {"command": ["touch", "x"], "workdir": "/", "environment": {}}),
        ("start_processes", {"tasks": [], "entries": []}),
        ("end_controller", {}),
        ("restart", {"names": ["../../x"]}),
    ):
        with pytest.raises(OperationFailed, match="refused: "):
            there.call(op, **arguments)
    assert "refused an order from 127.0.0.1: there is no order 'run_program'" in host.orders()
    with pytest.raises(OperationFailed, match="'/etc/passwd' is no log of the run"):
        there.call("follow", start="start-1", files={"/etc/passwd": 0})
    rows = {str(host.log.with_name(name)): 0 for name in ("metrics.jsonl", "hosts.jsonl")}
    there.call("follow", start="start-1", files={str(host.log): 0} | rows)
    with pytest.raises(OperationFailed, match="no frontend has planned a supervisor"):
        there.call("start_planned_daemon_supervisor", replace=False)
    there.close()


def test_an_order_for_another_start_is_refused(host):
    there = host.controller()
    for op, arguments in (("kill_learners", {}), ("follow", {"files": {}})):
        with pytest.raises(OperationFailed, match=f"refused: the order {op} is for another start"):
            there.call(op, start="start-2", **arguments)
    assert there.call("kill_learners", start="start-1") == 0
    there.close()


def test_an_order_that_is_nested_too_deeply_ends_no_server(host):
    context = order_channel.context(host.credentials, order_channel.CONTROLLER)
    plain = socket.create_connection(("127.0.0.1", host.server["port"]), 10)
    with context.wrap_socket(plain, server_hostname=order_channel.SUPERVISOR) as secured:
        secured.sendall(b"[" * 50_000 + b"\n")
        until(lambda: "its order is no JSON object" in host.orders())
    there = host.controller()
    assert there.call("has_start", start="start-1") is True
    there.close()


def test_once_a_frontend_has_taken_over_the_controller_before_is_refused(host):
    """It may still be connected, or come back after its host was cut off."""
    first = until(host.pid)
    before = host.controller()
    assert before.call("has_start", start="start-1") is True
    host.begin_term(2)
    os.kill(read_json(host.run.folder / "actor-0" / "state.json")["supervisor"][0], signal.SIGKILL)
    until(lambda: not procfs.is_alive(first))
    with pytest.raises(HostUnavailable):
        before.call("restart", names=["actor-0"])
    with pytest.raises(HostUnavailable, match="a frontend has taken over from this controller"):
        host.link()
    assert "a frontend has taken over from 127.0.0.1" in host.orders()
    assert host.node.states()["actor-0"]["state"] == "lost", "nothing was started"
    host.begin_term(1)  # by a frontend that has not heard of it
    with pytest.raises(HostUnavailable, match="a frontend has taken over"):
        host.link()
    host.link(term=2).close()
    with pytest.raises(HostUnavailable, match="a frontend has taken over"):
        host.link(term="2")


def test_learners_that_were_planned_anew_are_started_by_the_controller(host):
    """The host has lost its plans with the run's state, as after a reboot."""
    node = ControlledNode(host.node)
    command = [sys.executable, "-c", "import time; time.sleep(99)", "--learner_hosts=a:8001"]
    log = host.log.with_name("learners.log")
    task = Task("learners", "learner", "localhost", command, {}, str(host.log.parent), "",
                str(log), 1.0, "", 0.0, "", False, 0, 0.0, 1.0)  # fmt: skip
    task = task._replace(folder=str(host.run.folder))._asdict()
    entry = {"name": "learners", "job": "learner", "host": "localhost", "place": ""}
    entry |= {"kind": {}, "log": str(log)}
    there = host.controller()
    with pytest.raises(OperationFailed, match="were not planned on that host"):
        there.call("restart_learners", addresses=["127.0.0.1"])
    assert not node.has_plan("learners")
    node.plan_process(task, entry)
    assert node.has_plan("learners")
    assert host.node.states()["learners"]["state"] == "lost", "the controller sees it so"
    there.call("restart_learners", addresses=["127.0.0.1"])
    until(lambda: host.node.states()["learners"]["state"] == "running")
    supervisor = host.node.states()["learners"]["supervisor"]
    node.plan_process(task, entry)
    assert host.node.states()["learners"]["supervisor"] == supervisor, "it is left alone"
    there.close()


def test_only_the_controller_of_this_start_is_served(host):
    with pytest.raises(HostUnavailable, match="its order is for another server"):
        host.link(id="another")
    parts = certificates.by_role(certificates.make(ROLES), ROLES)
    mpirun = certificates.by_role(certificates.make(order_channel.ROLES), order_channel.ROLES)[
        order_channel.MPIRUN
    ]
    for stranger in (parts[order_channel.CONTROLLER], mpirun):
        host.credentials = stranger
        with pytest.raises(HostUnavailable, match=r"takes no orders .*waits for a frontend"):
            host.link()
    assert "refused a connection from 127.0.0.1: " in host.orders()


def test_states_reach_the_controller_and_the_server_ends_with_the_run(host):
    seen = {}

    class Listener:
        def on_states(self, host_id, states, all_states):
            seen.update(states)

        def on_connected(self, host_id):
            there.call("follow", start="start-1", files={})

        def on_disconnected(self, host_id, error):
            seen["lost"] = error

    until(host.pid)
    there = host.controller()
    there.stay_connected(Listener())
    until(lambda: seen.get("actor-0", {}).get("state") == "running")
    server = host.server_process()
    host.begin_term(1)  # it is started once
    host.node.request_stop("now")
    until(lambda: seen["actor-0"]["state"] == "stopped")
    there.call("end_orders")
    until(lambda: not procfs.is_alive(server))
    assert "127.0.0.1 orders: end_orders" in host.orders()
    until(lambda: "lost" in seen, 20)
    there.close()


def test_a_frontend_ends_the_server_of_a_run_without_a_controller(host):
    server = host.server_process()
    assert procfs.is_alive(server)
    ControlledNode(host.node).end_orders()
    assert not procfs.is_alive(server)


def test_a_server_that_cannot_listen_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Run("impala", remote_runs_folder()).create_state()
    task = {"name": "impala", "address": "host.invalid", "start": "1", "lease_secs": 0.0}
    parts = certificates.by_role(certificates.make(ROLES), ROLES)
    task["credentials"] = parts[order_channel.SUPERVISOR]
    with pytest.raises(OSError, match="what takes the controller's orders cannot listen: "):
        programs.start_order_server(task)
