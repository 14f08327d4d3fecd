"""The frontend's own settings; the experiment's are in impala_mm.config."""

import dataclasses

from impala_mm.flags import flag


@dataclasses.dataclass(frozen=True)
class LauncherConfig:
    """What the frontend itself is told."""

    # fmt: off
    workers_csv_path: str = flag(
        "workers.csv.example", group="Cluster",
        text="CSV of hosts, one process per row; its columns are explained in workers.csv.example.")
    # fmt: on
