"""The run's controllers, as an observer of all hosts sees them."""

from hosts import Lan

from launcher.node.controlled_node import CONTROLLED, read_term
from tests.chaos.disturbances import CONTROLLER

_STATE = "/root/.local/state/impala_mm/runs/impala"  # of the frontend, on the laptop


class Controllers:
    """The controllers that were seen, and those that have exited by themselves."""

    def __init__(self, lan: Lan, killed: set[int]):
        """Observe a run; `killed`: the pids of what a disturbance has killed."""
        self._lan, self._killed = lan, killed
        self._seen = dict[int, tuple[str, int]]()  # by pid: its host and its term
        self.exited: list[str] = []  # a sentence on each that has exited by itself

    def look(self) -> bool:
        """Look at all hosts; return whether there is a controller.

        One that was not killed may have been ended by a frontend that has taken over from it.
        """
        hosts = [host for host in self._lan.hosts.values() if host.up]
        living = {pid: host.name for host in hosts for pid in host.pids(CONTROLLER.command)}
        term = read_term(self._lan.laptop.path(_STATE) / CONTROLLED)
        for pid in self._seen.keys() - living.keys():
            name, of_controller = self._seen.pop(pid)
            if pid not in self._killed and of_controller == term:
                self.exited.append(f"the controller on {name} (process {pid}) exited by itself")
        for pid, name in living.items():
            self._seen.setdefault(pid, (name, term))
        return bool(living)
