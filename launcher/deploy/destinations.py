"""The folders on other hosts where a CSV's rows need the project, and their purposes."""

from collections.abc import Sequence
from typing import NamedTuple

from launcher.plan import host_environment
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import host_id_of


class Destination(NamedTuple):
    """A folder on a host where the project is deployed."""

    host_id: str
    folder: str
    role: str  # learner if one of its rows is one, else actor
    gpus: bool  # whether its learners use GPUs
    needs_setup: bool  # False: all of its rows name a Python of their own
    row: Worker  # one of them

    @property
    def device(self) -> str:
        """The device that its environment is installed for."""
        return "gpu" if self.gpus else "cpu"

    @property
    def key(self) -> str:
        """The name that identifies it."""
        return f"{self.host_id}:{self.folder}"


def find_destinations(workers: Sequence[Worker]) -> list[Destination]:
    """Return the destinations of all rows on other hosts."""
    rows: dict[tuple[str, str], list[Worker]] = {}
    for row in workers:
        if host_id_of(row):
            rows.setdefault(
                (host_id_of(row), row.workdir or host_environment.DEPLOY_FOLDER), []
            ).append(row)
    found = []
    for (host_id, folder), some in rows.items():
        learners = [row for row in some if row.job == "learner"]
        found.append(
            Destination(
                host_id=host_id,
                folder=folder,
                role="learner" if learners else "actor",
                gpus=any(row.gpus for row in learners),
                # A relative path is a Python within the project's own environment.
                needs_setup=any(not row.python or row.python.startswith(".") for row in some),
                row=next((row for row in some if not row.python), some[0]),
            )
        )
    return found
