"""--track: a run's rows and settings at Weights & Biases, too.

Rank 0 alone does it, in a thread of its own: `metrics_writer` hands over each row of metrics.jsonl,
and whatever becomes of them there, training neither waits nor ends. wandb is imported only here,
and is no part of set-up. Its account, project and mode come from its own environment variables.

    LOGDIR/wandb-id     names the run at wandb: a run that is resumed goes on there
    LOGDIR/wandb/       what wandb writes; `wandb sync` sends what was tracked offline
"""

import importlib.util
import math
import os
import queue
import secrets
import threading
from pathlib import Path
from typing import Any

from impala_mm.config import flags
from impala_mm.runtime.log import Say

_MAX_WAITING_ROWS = 1000  # rows that wait for wandb; half an hour of them
_LAST_ROWS_SECONDS = 20.0  # that the end of a run waits for wandb to take the last rows
_Row = dict[str, Any] | None  # None: there are no more


def refuse_without_wandb() -> None:
    """Refuses --track where wandb is not installed."""
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:  # a folder wandb/ here is no package
        flags.refuse(
            "--track: wandb is not installed: .venv/bin/uv pip install wandb "
            "-c constraints.lock, or leave --track out"
        )


class WandbTracking:
    """Of one run; nothing is begun at wandb before there is a row."""

    def __init__(self, logdir: Path, settings: dict[str, Any], say: Say):
        self._logdir, self._settings, self._say = logdir, settings, say
        self._rows: queue.Queue[_Row] = queue.Queue(_MAX_WAITING_ROWS)
        self._complained = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="tracking")

    def write(self, row: dict[str, Any]) -> None:
        """Takes one row, at once; where wandb is so slow that there is no room, it is left out."""
        if not self._thread.ident:
            self._thread.start()
        if not self._thread.is_alive():  # it failed, and said so
            return
        try:
            self._rows.put_nowait(dict(row))
        except queue.Full:
            self._complain("is too slow, rows are left out")

    def end(self) -> None:
        """Waits, not for long, until wandb has what was written."""
        if not self._thread.is_alive():
            return
        try:
            self._rows.put(None, timeout=1)
        except queue.Full:
            return
        self._thread.join(_LAST_ROWS_SECONDS)
        if self._thread.is_alive():
            self._complain("has not taken all rows")

    def _work(self) -> None:
        # Whatever wandb raises: at a terminal even KeyboardInterrupt, of its own making.
        began = False
        try:
            run = self._begin()
            began = True
            while (row := self._rows.get()) is not None:
                run.log(row)  # without a step: rows made again after a kill would be left out
            run.finish()
            self._module.teardown()  # its own process ends with it
        except BaseException as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            hint = "" if began else "; is `wandb login` done? WANDB_MODE=offline needs none"
            self._complain(f"failed ({reason[:200]}{hint})")

    def _begin(self) -> Any:
        """wandb's run: this one's, whichever start it is."""
        import wandb  # noqa: PLC0415

        self._module = wandb
        run = wandb.init(
            id=_run_id(self._logdir / "wandb-id"),
            resume="allow",
            project=os.environ.get("WANDB_PROJECT") or "impala_mm",
            name=os.environ.get("WANDB_NAME") or self._logdir.resolve().name,
            dir=str(self._logdir),
            config={name: _plain(value) for name, value in self._settings.items()},
            # It is not to ask at the terminal, nor to take what is printed: others do.
            settings={"console": "off", "silent": True, "login_timeout": 1},
        )
        run.define_metric("*", step_metric="frames")
        if run.offline:
            self._say(f"tracked in {self._logdir / 'wandb'}; `wandb sync` sends it")
        elif run.disabled and os.environ.get("WANDB_MODE") != "disabled":
            raise RuntimeError("no account is known")
        elif run.url:
            self._say(f"tracked at {run.url}")
        return run

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._say(f"wandb {what}; training goes on, metrics.jsonl has everything")
        self._complained = True


def _run_id(path: Path) -> str:
    """The run's name at wandb, made by its first start."""
    try:
        known = path.read_text().strip()
    except FileNotFoundError:
        known = ""
    if not known:
        known = secrets.token_hex(4)
        path.write_text(known + "\n")
    return known


def _plain(value: Any) -> Any:
    """JSON knows no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
