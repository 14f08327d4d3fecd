"""--track: send a run's metrics and settings to Weights & Biases.

`metrics_writer` hands over each row of metrics.jsonl on rank 0, and a thread sends them. Training
does not wait for wandb, and an error of wandb does not end it. wandb is imported only here and is
not installed by set-up. Its account, project and mode come from its own environment variables.

    LOGDIR/wandb-id     the run's id at wandb, under which a resumed run continues
    LOGDIR/wandb/       wandb's own files; `wandb sync` uploads what was tracked offline
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

_MAX_WAITING_ROWS = 1000  # rows waiting for wandb, about half an hour of training
_LAST_ROWS_SECONDS = 20.0  # how long the end of a run waits until wandb has the last rows
_Row = dict[str, Any] | None  # None marks the end


def refuse_without_wandb() -> None:
    """Refuse --track where wandb is not installed."""
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:  # without an origin it is just a folder named wandb/
        flags.refuse(
            "--track: wandb is not installed: .venv/bin/uv pip install wandb "
            "-c constraints.lock, or leave --track out"
        )


class WandbTracking:
    """The tracking of one run, which starts with the first row."""

    def __init__(self, logdir: Path, settings: dict[str, Any], say: Say):
        self._logdir, self._settings, self._say = logdir, settings, say
        self._rows: queue.Queue[_Row] = queue.Queue(_MAX_WAITING_ROWS)
        self._complained = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="tracking")

    def write(self, row: dict[str, Any]) -> None:
        """Queue a row without waiting; drop it if the queue is full because wandb is too slow."""
        if not self._thread.ident:
            self._thread.start()
        if not self._thread.is_alive():  # it has failed and logged why
            return
        try:
            self._rows.put_nowait(dict(row))
        except queue.Full:
            self._complain("is too slow, rows are dropped")

    def end(self) -> None:
        """Wait until wandb has all rows, but not longer than `_LAST_ROWS_SECONDS`."""
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
        """Send rows until None is queued."""
        # All exceptions are caught: at a terminal wandb itself raises even KeyboardInterrupt.
        began = False
        try:
            run = self._begin()
            began = True
            while (row := self._rows.get()) is not None:
                # Without a step, since wandb would drop rows that are repeated after a crash.
                run.log(row)
            run.finish()
            self._module.teardown()  # this ends the process that wandb started
        except BaseException as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            hint = "" if began else "; run `wandb login`, or set WANDB_MODE=offline"
            self._complain(f"failed ({reason[:200]}{hint})")

    def _begin(self) -> Any:
        """Return wandb's run object, the same run for every start of this one."""
        import wandb  # noqa: PLC0415

        self._module = wandb
        run = wandb.init(
            id=_run_id(self._logdir / "wandb-id"),
            resume="allow",
            project=os.environ.get("WANDB_PROJECT") or "impala_mm",
            name=os.environ.get("WANDB_NAME") or self._logdir.resolve().name,
            dir=str(self._logdir),
            config={name: _plain(value) for name, value in self._settings.items()},
            # wandb must not prompt at the terminal, nor capture the output.
            settings={"console": "off", "silent": True, "login_timeout": 1},
        )
        run.define_metric("*", step_metric="frames")
        if run.offline:
            self._say(f"tracked in {self._logdir / 'wandb'}; `wandb sync` uploads it")
        elif run.disabled and os.environ.get("WANDB_MODE") != "disabled":
            raise RuntimeError("no wandb account is configured")
        elif run.url:
            self._say(f"tracked at {run.url}")
        return run

    def _complain(self, what: str) -> None:
        """Log the first problem of wandb, and no others."""
        if not self._complained:
            self._say(f"wandb {what}; training continues, metrics.jsonl has all rows")
        self._complained = True


def _run_id(path: Path) -> str:
    """Return the run's id at wandb, which its first start creates."""
    try:
        known = path.read_text().strip()
    except FileNotFoundError:
        known = ""
    if not known:
        known = secrets.token_hex(4)
        path.write_text(known + "\n")
    return known


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: infinity and NaN as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
