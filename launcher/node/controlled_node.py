"""One machine's part of a run that has its controller on a host of the CSV.

What the controller may order is in `host_orders`: it starts again what was planned here. The rest
is for frontends, over SSH.
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from launcher.node import logind, mpirun, mpirun_agent, procfs, programs, recorded_process
from launcher.node.json_types import fields_fit
from launcher.node.local_node import DAEMON_PLAN, PLAN, LocalNode
from launcher.node.run_registry import Run, RunInUse, boot_id
from launcher.node.task import (
    LEARNERS,
    learner_hosts_of,
    read_json,
    with_learner_hosts,
    with_reported_hosts,
    write_json,
)

CONTROLLER = "the controller"  # its name among the states of a host's processes
ORDER_SERVER = "orders.json"  # in the run's state folder: the `order_server`'s pid, port and id
CONTROLLER_STATE = "controller.json"  # in the controller's state folder: what it reports
ORDERS = "control.json"  # there, too: its term, credentials, and where each host takes orders
# In the run's state folder of a frontend: the controller's host, the term, credentials, and where
# the servers listen.
CONTROLLED = "controlled.json"
# In the run's state folder of a host: {"term": n}. A frontend that takes over from a controller
# begins the next term, and orders of earlier ones are refused: learners run once.
TERM = "term.json"
SILENT_SECONDS = 30.0  # seconds without a heartbeat after which a controller counts as hung
_START_SECONDS = 90.0  # timeout for a controller to follow the run
# What a controller reports, and what its host adds to that for frontends elsewhere.
_KINDS: dict[str, Any] = {
    "process": list[int],
    "unreached": list[str],
    "logins": dict[str, int],
    **dict.fromkeys(("boot", "host", "log", "ended"), str),
    **dict.fromkeys(("since", "beat"), float),
    "term": int,
}
_ADDED_KINDS: dict[str, Any] = {"place": str, "alive": bool, "hung": bool}
_OTHER_KINDS: dict[str, Any] = {"command": list[str], "folder": str, "ready": bool}


def is_controller_state(entry: dict[str, Any]) -> bool:
    """Return whether what a controller has reported has the fields that its readers rely on."""
    needed = _KINDS | (_ADDED_KINDS if "place" in entry else _OTHER_KINDS)
    return (
        needed.keys() <= entry.keys()
        and fields_fit(entry, _KINDS | _ADDED_KINDS | _OTHER_KINDS)
        and len(entry["process"]) == 2
    )


def read_term(path: Path) -> int:
    """Return the term in a file; 0 if there is none."""
    term = read_json(path).get("term")
    return term if type(term) is int else 0


class ControlledNode:
    """The part of one run that is on this machine, as a controller elsewhere needs it."""

    def __init__(self, node: LocalNode):
        self._node, self._run = node, node.run
        # The controller's own state is apart from this host's part of the run.
        self._state = self._run.folder.parent.parent / "controller"
        self._folder = self._state / "impala_mm" / "runs" / self._run.name

    # -- orders

    def restart(self, names: list[str]) -> list[str]:
        """Start these processes again as they were planned here; return those that were started.

        Processes that are running, that a user has stopped, or that were not planned here are left
        out. Raises RunInUse if the run was stopped.
        """
        self._refuse_stopped()
        found = []
        for name in names:
            is_stopped = name == LEARNERS or (self._run.folder / name / "stop").exists()
            if (task := self._find_plan(name)) and not is_stopped:
                self._start(task, task)
                found.append(name)
        return found

    def restart_learners(self, addresses: list[str]) -> None:
        """Start the learners again on some of the hosts for which they were planned.

        `addresses`: those of the hosts, of which this one is the first. Learners take their former
        ports. Raises RunInUse.
        """
        self._refuse_stopped()
        task = self._find_plan(LEARNERS)
        if not task:
            raise RunInUse("the learners are running, or were not planned on that host")
        task = with_reported_hosts(task, self._node.states()[LEARNERS])
        command = task["command"]
        hosts, known = mpirun.hosts_of_ranks(command), learner_hosts_of(command)
        if unplanned := sorted(set(addresses[1:]) - set(hosts)):
            raise RunInUse(
                f"the learners were not planned for {', '.join(unplanned)}: stop the run, and "
                f"start it again with a CSV that names them"
            )
        if hosts:
            if hosts[0] not in addresses:
                raise RunInUse("the host of the first learner has its checkpoints, and must stay")
            known = [each for each, host in zip(known, hosts, strict=True) if host in addresses]
            command = mpirun.without_hosts(command, addresses)
        self._start(task | {"command": with_learner_hosts(command, known)}, task)

    def _refuse_stopped(self) -> None:
        if (self._run.folder / "stop").exists():
            raise RunInUse(f"{self._run.name} was stopped: nothing is started again")

    def _find_plan(self, name: str) -> dict[str, Any]:
        """Return the plan of a process that is not running; empty if it is, or has none."""
        state = self._node.states().get(name)
        is_running = state is None or procfs.is_alive(state.get("supervisor"))
        return {} if is_running else read_json(self._run.folder / name / PLAN)

    def _start(self, task: dict[str, Any], plan: dict[str, Any]) -> None:
        """Start a task, and keep the plan."""
        record = self._run.record
        assert record
        with self._run.locked(wait=True):
            self._node.start_supervisors([task], record)
            write_json(self._run.folder / task["name"] / PLAN, plan)

    def start_planned_daemon_supervisor(self, replace: bool) -> dict[str, Any]:
        """Start the supervisor of mpirun's daemon as it was planned here."""
        task = read_json(self._run.folder / DAEMON_PLAN)
        if not task:
            raise RunInUse("no frontend has planned a supervisor of mpirun's daemon on that host")
        return self._node.start_daemon_supervisor(task, replace)

    def write_planned_mpirun_agent(self, supervisors: dict[str, dict[str, Any]]) -> None:
        """Write where the supervisors of mpirun's daemons listen now."""
        known = mpirun_agent.read(self._run.folder)
        plan = read_json(self._run.folder / LEARNERS / PLAN)
        if not known or not supervisors.keys() <= set(
            mpirun.hosts_of_ranks(plan.get("command", []))
        ):
            raise RunInUse("the learners' mpirun was planned for other hosts")
        self._node.write_mpirun_agent(known["credentials"], supervisors)

    # -- for frontends

    def has_plan(self, name: str) -> bool:
        """Return whether a process was planned here; empty: the supervisor of mpirun's daemon."""
        return (self._run.folder / (f"{name}/{PLAN}" if name else DAEMON_PLAN)).exists()

    def plan_process(self, task: dict[str, Any], entry: dict[str, Any]) -> None:
        """Let the controller start a process that this machine has forgotten.

        `task` and `entry` are those of `LocalNode.start_processes`. A process that is running is
        left alone.
        """
        with self._run.locked(wait=True):
            known = self._node.states().get(task["name"], {})
            if procfs.is_alive(known.get("supervisor")):
                return
            if self._run.record is None:
                raise RunInUse(f"{self._run.name} was not begun on that host")
            folder = self._run.folder / task["name"]
            folder.mkdir(mode=0o700, exist_ok=True)
            write_json(folder / PLAN, task)
            self._node.add_entries([entry])

    def start_order_server(self, task: dict[str, Any], term: int) -> dict[str, Any]:
        """Start what takes the controller's orders, unless it is running; return where it listens.

        `task`: an `OrderServerTask` without the run's name. Orders of an earlier term than `term`
        are refused from now on.
        """
        record = self._run.record
        if record is None or record.id != task["start"]:
            raise RunInUse(f"{self._run.name} was not begun on that host")
        with self._run.locked(wait=True):  # against other frontends
            if term > read_term(self._run.folder / TERM):
                write_json(self._run.folder / TERM, {"term": term})
            running = read_json(self._run.folder / ORDER_SERVER)
            if procfs.is_alive(running.get("supervisor")):
                return {"port": running["port"], "id": running["id"]}
            before = logind.staying_command() or []
            return programs.start_order_server(task | {"name": self._run.name}, before)

    def write_control(self, record: dict[str, Any], control: dict[str, Any]) -> None:
        """Write what the controller on this host needs: the run's record, and `ORDERS`.

        The controller of another start, or of an earlier term, is ended.
        """
        self._end_earlier_controller(record["id"])
        if read_term(self._folder / ORDERS) < control["term"]:
            self.end_controller()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._folder / "seen").mkdir(exist_ok=True)
        logs = self._run.folder.parent.parent / "logs" / f"{self._run.name}-{record['id']}"
        logs.mkdir(parents=True, exist_ok=True)
        write_json(self._folder / ORDERS, control)
        path = self._folder / "run.json"
        own = {"boot": boot_id(), "logdir": str(logs)}
        if self.controller_state():  # one of this term may have left hosts out since
            own["learner_places"] = read_json(path)["learner_places"]
        write_json(path, record | own)

    def start_controller(self, command: list[str], workdir: str) -> dict[str, Any]:
        """Start the controller on this host, unless it is running; return what it reports.

        Raises OSError if it does not follow the run.
        """
        entry = self.controller_state()
        if entry and entry["alive"]:
            if not entry["hung"]:
                return entry
            recorded_process.kill(entry["process"])
        log = Path(read_json(self._folder / "run.json")["logdir"]) / "controller.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*(logind.staying_command() or []), *command],
                cwd=workdir,
                env=os.environ | {"XDG_STATE_HOME": str(self._state)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and process.poll() is None:
            entry = self.controller_state()
            if entry and entry["process"][0] == process.pid and (entry["ready"] or entry["ended"]):
                return entry
            time.sleep(0.05)
        process.kill()
        process.wait()
        raise OSError(f"it did not follow the run; its log: {log}")

    def forget(self, start: str = "") -> None:
        """Do as `LocalNode.forget`, after ending what takes the controller's orders."""
        record = self._run.record
        if record and start in ("", record.id):
            self.end_orders()
        self._node.forget(start)

    def end_orders(self) -> None:
        """End what takes the controller's orders: the run has ended."""
        if server := read_json(self._run.folder / ORDER_SERVER).get("supervisor"):
            recorded_process.end(server)

    def begin_run(self, record: dict[str, Any], token: str, starts_to_end: list[str]) -> None:
        """Do as `LocalNode.begin_run`, and end the controller of an earlier start."""
        self._node.begin_run(record, token, starts_to_end)
        self._end_earlier_controller(record["id"])

    def end_starts(self, starts: list[str]) -> bool:
        """Do as `LocalNode.end_starts`, after ending the controllers of these starts."""
        for path in self._folder.parent.glob("*/run.json"):
            if read_json(path).get("id") in starts:
                run = Run(path.parent.name, self._run.folder.parent)
                ControlledNode(LocalNode(run)).end_controller()
        return self._node.end_starts(starts)

    def controller_state(self) -> dict[str, Any]:
        """Return what the controller on this host reports; empty if there never was one."""
        entry = read_json(self._folder / CONTROLLER_STATE)
        if not is_controller_state(entry):
            return {}
        alive = entry["boot"] == boot_id() and procfs.is_alive(entry["process"])
        hung = alive and time.time() - entry["beat"] > SILENT_SECONDS
        return entry | {"alive": alive, "hung": hung}

    def end_controller(self) -> None:
        """End the controller on this host, and remove its state: the run was stopped."""
        entry = self.controller_state()
        if entry and entry["alive"]:
            recorded_process.end(entry["process"])
        Run(self._run.name, self._folder.parent).forget()

    def _end_earlier_controller(self, start: str) -> None:
        """End the controller of another start: this one must not inherit its stop or its states."""
        if read_json(self._folder / "run.json").get("id", start) != start:
            self.end_controller()
