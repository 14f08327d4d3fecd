"""The trackers of other programs: each a `Tracker` of `tracking`, registered once in `TRACKERS`.

Set-up installs none of them. Accounts, places and names come from their own environment variables.

    LOGDIR/wandb-id     the run's id at wandb, under which a resumed run continues
    LOGDIR/wandb/       wandb's own files; `wandb sync` uploads what was tracked offline
    LOGDIR/trackio-id   the same at Trackio, a part of the run's name
    LOGDIR/mlflow-id    the same at MLflow, which gives the id
"""

import importlib.util
import math
import os
import re
import secrets
import shlex
import time
from pathlib import Path
from typing import Any

from impala_mm.config.errors import UserMistake
from impala_mm.records.tracking import TrackedRun

_PROJECT = "impala_mm"


class WandbTracker:
    """A `Tracker` that sends a run to Weights & Biases."""

    def __init__(self) -> None:
        """Raise UserMistake if wandb is not installed."""
        _refuse_missing("wandb")

    def begin(self, run: TrackedRun) -> str:
        """Begin, as the same run of wandb for every start of this one; return where it is."""
        import wandb  # noqa: PLC0415

        self._module, name = wandb, run.logdir.resolve().name
        # Else copies of artifacts, which wait for the upload, would be in the home.
        os.environ.setdefault("WANDB_DATA_DIR", str(run.logdir.resolve() / "wandb"))
        self._id = _run_id(run.logdir / "wandb-id")
        try:
            self._run = wandb.init(
                id=self._id,
                resume="allow",
                project=os.environ.get("WANDB_PROJECT") or _PROJECT,
                name=os.environ.get("WANDB_NAME") or name,
                dir=str(run.logdir),
                config=_plain_settings(run),
                tags=run.tags or None,
                # wandb must not prompt at the terminal, nor capture the output.
                settings={"console": "off", "silent": True, "login_timeout": 1},
            )
        except BaseException as error:  # at a terminal wandb raises even KeyboardInterrupt
            raise _without_login(str(error) or type(error).__name__) from error
        self._run.define_metric("*", step_metric="frames")
        if self._run.offline:
            return f"tracked in {run.logdir / 'wandb'}; `wandb sync` uploads it"
        if self._run.disabled and os.environ.get("WANDB_MODE") != "disabled":
            raise _without_login("no wandb account is configured")
        return f"tracked at {self._run.url}" if self._run.url else ""

    def log(self, row: dict[str, float]) -> None:
        """Log a row; without a step, since wandb would drop rows that a crash has repeated."""
        self._run.log(row)

    def add_file(self, path: Path, kind: str) -> None:
        """Log a file as an artifact of its kind."""
        artifact = self._module.Artifact(f"{kind}-{self._id}-{path.stem}", type=kind)
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def finish(self) -> None:
        """End the run at wandb, and the process that wandb started."""
        self._run.finish()
        self._module.teardown()


class TrackioTracker:
    """A `Tracker` that sends a run to Trackio: on this machine, or to TRACKIO_SPACE_ID's Space."""

    def __init__(self) -> None:
        """Raise UserMistake if Trackio is not installed."""
        _refuse_missing("trackio")

    def begin(self, run: TrackedRun) -> str:
        """Begin, as the same run for every start of this one; return how to see it."""
        import trackio  # noqa: PLC0415

        self._module = trackio
        self._id = _run_id(run.logdir / "trackio-id")
        project = os.environ.get("TRACKIO_PROJECT") or _PROJECT
        name = os.environ.get("TRACKIO_NAME") or run.logdir.resolve().name
        self._run = trackio.init(
            project=project,
            name=f"{name}-{self._id}",  # runs are told apart by their names
            resume="allow",
            config=_plain_settings(run) | {"tags": run.tags},
            embed=False,
        )
        space = os.environ.get("TRACKIO_SPACE_ID")
        return f"tracked in Space {space}" if space else f"`trackio show --project {project}`"

    def log(self, row: dict[str, float]) -> None:
        """Log a row at its frames."""
        self._run.log(row, step=int(row["frames"]))

    def add_file(self, path: Path, kind: str) -> None:
        """Log a file as an artifact of its kind."""
        self._run.log_artifact(path, name=f"{kind}-{self._id}-{path.stem}", type=kind)

    def finish(self) -> None:
        """Wait until Trackio has everything, and end the run there."""
        self._module.finish()


class MlflowTracker:
    """A `Tracker` that sends a run to MLflow: to MLFLOW_TRACKING_URI, or MLflow's own default."""

    _MOST_PARAMETERS = 100  # in a call

    def __init__(self) -> None:
        """Raise UserMistake if MLflow is not installed."""
        _refuse_missing("mlflow", "mlflow-skinny[db]")

    def begin(self, run: TrackedRun) -> str:
        """Begin, or continue the run whose id an earlier start has kept; return where it is.

        Settings are those of the first start: MLflow lets no parameter change.
        """
        import mlflow  # noqa: PLC0415

        self._module, self._client = mlflow, mlflow.MlflowClient()
        kept = run.logdir / "mlflow-id"
        if kept.exists():
            self._id = kept.read_text().strip()
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._create(run)
            kept.write_text(self._id + "\n")
        return f"tracked at {self._client.tracking_uri}, as run {self._id}"

    def _create(self, run: TrackedRun) -> str:
        """Create a run with its settings, and return its id."""
        client, name = self._client, os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        created = client.create_run(
            number, tags=dict.fromkeys(run.tags, "yes"), run_name=run.logdir.resolve().name
        )
        identity: str = created.info.run_id
        parameter = self._module.entities.Param
        settings = [parameter(key, str(value)) for key, value in run.settings.items()]
        for begin in range(0, len(settings), self._MOST_PARAMETERS):
            client.log_batch(identity, params=settings[begin : begin + self._MOST_PARAMETERS])
        return identity

    def log(self, row: dict[str, float]) -> None:
        """Log a row at its frames; MLflow's names have fewer characters than those of levels."""
        metric, now = self._module.entities.Metric, int(1000 * time.time())
        metrics = [
            metric(re.sub(r"[^\w\-. :/]", "_", key), value, now, int(row["frames"]))
            for key, value in row.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def add_file(self, path: Path, kind: str) -> None:
        """Log a file as an artifact, in a folder for its kind."""
        self._client.log_artifact(self._id, str(path), kind)

    def finish(self) -> None:
        """End the run at MLflow."""
        self._client.set_terminated(self._id)


def _refuse_missing(module: str, package: str = "") -> None:
    """Raise UserMistake if a tracker's module is not installed; `package` installs it."""
    found = importlib.util.find_spec(module)
    if not (found and found.origin):  # without an origin it is just a folder of that name
        raise UserMistake(
            f"{module} is not installed: pip install {shlex.quote(package or module)}, in a clone "
            f"with -c constraints.lock; or leave --track out"
        )


def _without_login(reason: str) -> RuntimeError:
    line = reason.strip().splitlines()[0][:120]
    return RuntimeError(f"{line}; run `wandb login`, or set WANDB_MODE=offline")


def _run_id(path: Path) -> str:
    """Return the run's id at a tracker, which its first start creates."""
    try:
        identity = path.read_text().strip()
    except FileNotFoundError:
        identity = ""
    if not identity:
        identity = secrets.token_hex(4)
        path.write_text(identity + "\n")
    return identity


def _plain_settings(run: TrackedRun) -> dict[str, Any]:
    """Return the settings as JSON can hold them: infinity and NaN as text."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in run.settings.items()
    }
