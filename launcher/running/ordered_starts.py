"""The orders by which a controller without SSH starts processes again on their hosts.

A host starts only what a frontend has planned there (`launcher.node.controlled_node`): the first
learner cannot move to another host, and a host that does not know the run waits for a frontend.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from launcher.node.run_registry import Record, Run
from launcher.node.task import LEARNERS, read_json
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts

_SECONDS = 60.0  # timeout for a host to start supervisors and open windows


def learner_rows(record: Record) -> list[Worker]:
    """Return a row for each host of the learners, which names the host by its id."""
    return [Worker(0, "learner", host_id) for host_id in record.first_learner_places]


class OrderedStarts:
    """The orders to start the processes of one run again."""

    def __init__(self, run: Run, hosts: Hosts):
        self._run, self._hosts = run, hosts

    def restart(self, record: Record, names: Iterable[str]) -> list[str]:
        """Start these processes again; return the names of those that were started.

        A host leaves out what is running, was stopped by a user, or was not planned there.
        """
        by_host: dict[str, list[str]] = {}
        for name in names:
            by_host.setdefault(record.host_id_of(name), []).append(name)
        found: list[str] = []
        for host_id, some in by_host.items():
            before = {name: self._state(name) for name in some}
            started = self._hosts.call(host_id, "restart", names=some, timeout=_SECONDS)
            for name in [each for each in some if each in started]:
                found.append(name)
                (self._run.folder / name / "stop").unlink(missing_ok=True)
                if self._state(name) == before[name]:  # else the new process has reported already
                    self._forget_state(name)
        return found

    def start_daemon_supervisors(
        self, record: Record, places: Sequence[str], replace: bool
    ) -> None:
        """Start the supervisors of mpirun's daemons, and tell the first host where they listen.

        `places`: the hosts of the learners, the first learner's first.
        """
        if len(record.first_learner_places) == 1:
            return
        first, *others = places
        listening = {
            self._address(host_id): self._hosts.call(
                host_id, "start_planned_daemon_supervisor", replace=replace, timeout=_SECONDS
            )
            for host_id in others
        }
        self._hosts.call(first, "write_planned_mpirun_agent", supervisors=listening)

    def end(self) -> None:
        """Let the hosts take no more orders: the run has ended."""
        self._hosts.for_each(
            lambda host_id: self._hosts.call(host_id, "end_orders"), list(self._hosts.remote_nodes)
        )

    def restart_learners(self, record: Record, places: Sequence[str]) -> None:
        """Start the learners again on these hosts, after all of them were ended."""
        self.start_daemon_supervisors(record, places, replace=True)
        self._forget_state(LEARNERS)
        addresses = [self._address(host_id) for host_id in places]
        self._hosts.call(places[0], "restart_learners", addresses=addresses, timeout=_SECONDS)

    def _state(self, name: str) -> dict[str, Any]:
        return read_json(self._run.folder / name / "state.json")

    def _forget_state(self, name: str) -> None:
        """Remove the copied state of the process before."""
        for file in ("state.json", "stop"):
            (self._run.folder / name / file).unlink(missing_ok=True)

    def _address(self, host_id: str) -> str:
        return self._hosts.remote_nodes[host_id].address
