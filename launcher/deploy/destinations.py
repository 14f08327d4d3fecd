"""Where a CSV's rows want the project to be on other hosts, and for what."""

from collections.abc import Sequence
from typing import NamedTuple

from launcher.plan import host_environment
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import host_id_of


class Destination(NamedTuple):
    """A folder of a host that the project is to be in."""

    host_id: str
    folder: str
    role: str  # of its machine: learner, or actor
    gpus: bool  # that its learners use, if there are any
    needs_setup: bool  # else all of its rows have a Python of their own
    row: Worker  # one of them

    @property
    def device(self) -> str:
        """That its environment is for."""
        return "gpu" if self.gpus else "cpu"

    @property
    def key(self) -> str:
        """Its own."""
        return f"{self.host_id}:{self.folder}"


def find_destinations(workers: Sequence[Worker]) -> list[Destination]:
    """Of all rows on other hosts."""
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
                gpus=any(row.cuda_visible_devices for row in learners),
                # A path that does not begin at the root is of the project's own environment.
                needs_setup=any(not row.python or row.python.startswith(".") for row in some),
                row=next((row for row in some if not row.python), some[0]),
            )
        )
    return found
