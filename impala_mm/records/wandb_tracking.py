"""--track=wandb: Weights & Biases as a tracker.

wandb is imported only here and is not installed by set-up. Its account, project and mode come from
its own environment variables.

    LOGDIR/wandb-id     the run's id at wandb, under which a resumed run continues
    LOGDIR/wandb/       wandb's own files; `wandb sync` uploads what was tracked offline
"""

import importlib.util
import math
import os
import secrets
from pathlib import Path
from typing import Any

from impala_mm.config.errors import UserMistake
from impala_mm.records.tracking import TrackedRun


class WandbTracker:
    """A `Tracker` that sends a run to Weights & Biases."""

    def __init__(self) -> None:
        """Raise UserMistake if wandb is not installed."""
        package = importlib.util.find_spec("wandb")
        if not (package and package.origin):  # without an origin it is just a folder named wandb/
            raise UserMistake(
                "wandb is not installed: .venv/bin/uv pip install wandb -c constraints.lock, or "
                "leave --track out"
            )

    def begin(self, run: TrackedRun) -> str:
        """Begin, as the same run of wandb for every start of this one; return where it is."""
        import wandb  # noqa: PLC0415

        self._module, name = wandb, run.logdir.resolve().name
        # Else copies of artifacts, which wait for the upload, would be in the home.
        os.environ.setdefault("WANDB_DATA_DIR", str(run.logdir.resolve() / "wandb"))
        self._id = _run_id(run.logdir / "wandb-id")
        self._run = wandb.init(
            id=self._id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT") or "impala_mm",
            name=os.environ.get("WANDB_NAME") or name,
            dir=str(run.logdir),
            config={name: _plain(value) for name, value in run.settings.items()},
            tags=run.tags or None,
            # wandb must not prompt at the terminal, nor capture the output.
            settings={"console": "off", "silent": True, "login_timeout": 1},
        )
        self._run.define_metric("*", step_metric="frames")
        if self._run.offline:
            return f"tracked in {run.logdir / 'wandb'}; `wandb sync` uploads it"
        if self._run.disabled and os.environ.get("WANDB_MODE") != "disabled":
            raise RuntimeError("no wandb account is configured")
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


def _run_id(path: Path) -> str:
    """Return the run's id at wandb, which its first start creates."""
    try:
        identity = path.read_text().strip()
    except FileNotFoundError:
        identity = ""
    if not identity:
        identity = secrets.token_hex(4)
        path.write_text(identity + "\n")
    return identity


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: infinity and NaN as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
