"""The status of a run: its processes, throughput and bottleneck, as JSON or as a live table."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod, OverflowMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from impala_mm.config.messages import escape, log_line
from impala_mm.runtime import machine
from impala_mm.runtime.safe_files import from_json, open_inside, to_json
from impala_mm.runtime.timing import format_duration
from launcher.follow import controller
from launcher.follow.console import make_console
from launcher.supervise.json_files import fits
from launcher.supervise.process_state import State
from launcher.supervise.run_registry import Record, Run, boot_id
from launcher.supervise.task import FINAL_STATES, LEARNERS

_REFRESH_SECONDS = 1.0
_TAIL_BYTES = 1 << 16  # bytes at the end of metrics.jsonl that are searched for its last row
_TOTALS = {
    **dict.fromkeys(("frames", "frames_per_second", "episode_return", "policy_lag"), float),
    "verdict": str,
}


# How the table shows a state; the JSON has the state itself. Others are shown as they are.
_STATE_LABELS = {
    "waits": "waiting to restart",
    "away": "unreachable",
    "lost": "supervisor lost",
    "stale": "ended by a reboot",
    "elsewhere": "started on another machine",
}
_COLOURS = {
    "running": "green",
    "failed": "red",
    "lost": "red",
    "waits": "yellow",
    "away": "yellow",
}
_COLUMNS: dict[str, JustifyMethod] = {
    **dict.fromkeys(("process", "host", "state"), "left"),
    **dict.fromkeys(("uptime", "frames/s", "CPU", "memory", "restarts"), "right"),
}
# The columns again: a narrow terminal has no room for the last of these.
_RANKS = ("process", "state", "frames/s", "uptime", "restarts", "host", "CPU", "memory")
_GAP = 2  # characters between two columns
_LEAST_LOG = 16  # characters of the last log line below which it is left out


def state_label(state: str) -> str:
    """Return a state as messages and the table show it."""
    return _STATE_LABELS.get(state, state)


def snapshot(run: Run) -> dict[str, Any]:
    """Return the run's present status, in the format of `--json`; empty if there is no run."""
    status = snapshot_without_gpus(run)
    keys = ("index", "name", "used", "memory", "of")
    measured = (
        [dict(zip(keys, gpu, strict=True)) for gpu in machine.measure_gpus()] if status else []
    )
    return status and status | {"gpus": measured}


def snapshot_without_gpus(run: Run) -> dict[str, Any]:
    """Return all of the status but the use of this machine's GPUs, which takes long to measure."""
    record = run.record
    if record is None:
        return {}
    states = run.states()
    state = _summarize_state(record, states)
    row = last_row(Path(record.logdir) / "metrics.jsonl", record.time)
    learners = states.get(LEARNERS) or State(LEARNERS, "", "", "lost")
    if learners.state == "away":  # no newer row can come
        where = f"the learners' host {learners.host} is unreachable from this machine"
        row["verdict"] = f"{where}; the figures are the last that it sent"
    elif state == "failed":
        failed = next((each for each in states.values() if each.state == "failed"), learners)
        why = failed.failure.why if failed.failure else "has failed"
        row["verdict"] = f"failed: {failed.name} {why}"
    elif state in (*FINAL_STATES, "stale"):
        row["verdict"] = describe_end(row)
    return {
        "name": record.name,
        "state": state,
        "logdir": record.logdir,
        "seconds": round(time.time() - record.time, 1),
        **row,
        "controller": _describe_controller(run),
        "processes": [describe_process(state) for state in states.values()],
    }


def run_state(run: Run) -> str:
    """Return the state of the run itself; empty if there is no run."""
    record = run.record
    return _summarize_state(record, run.states()) if record else ""


def show_status(run: Run, as_json: bool) -> None:
    """Print the status: as JSON, or as a table that a terminal updates until the run has ended."""
    if as_json:
        print(to_json(snapshot(run), indent=1))
        return
    console = make_console()
    if not console.is_terminal:
        status = snapshot(run)
        if status:
            console.print(picture(status, len(status["processes"]), console))
        return
    with (
        contextlib.suppress(KeyboardInterrupt),  # Ctrl-C ends the table, not the run
        Live(console=console, screen=False, auto_refresh=False) as live,
    ):
        while True:
            status = snapshot(run)
            if not status:  # another frontend stopped the run and removed its record
                return
            live.update(picture(status, max(console.height - 8, 5), console), refresh=True)
            if status["state"] in (*FINAL_STATES, "lost", "stale", "elsewhere"):
                return
            time.sleep(_REFRESH_SECONDS)


def picture(status: dict[str, Any], rows: int, console: Console) -> Group:
    """Return the table of a snapshot for a console, with at most `rows` processes.

    If not all fit, processes that are not running or were restarted come first.
    """
    processes = status["processes"]
    parts: list[Any] = [_headline(status)]
    if len(processes) > rows:
        processes = sorted(processes, key=lambda p: (p["state"] == "running", not p["restarts"]))
        parts.append(_table(processes[:rows], console))
        parts.append(Text(f"and {len(processes) - rows} more", style="dim"))
    else:
        parts.append(_table(processes, console))
    return Group(*parts)


def _table(processes: Sequence[dict[str, Any]], console: Console) -> Table:
    """Return a table with a row for each process, with the columns for which there is room."""
    cells = [_cells(process) for process in processes]
    widths = {name: max(map(cell_len, [name, *(c[name] for c in cells)])) + _GAP for name in _RANKS}
    shown: list[str] = []
    for name in _RANKS:
        if len(shown) > 1 and sum(map(widths.__getitem__, (*shown, name))) - _GAP > console.width:
            break
        shown.append(name)
    has_log = console.width - sum(map(widths.__getitem__, shown)) >= _LEAST_LOG
    # Other encodings lack the character of an ellipsis.
    cut: OverflowMethod = "crop" if console.options.ascii_only else "ellipsis"
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name, justify in _COLUMNS.items():
        if name in shown:
            least = widths[name] - _GAP if name == "process" else None  # the state is cut first
            table.add_column(name, justify=justify, no_wrap=True, overflow=cut, min_width=least)
    if has_log:
        table.expand = True
        table.add_column("last log line", no_wrap=True, overflow=cut, ratio=1)
    for process, each in zip(processes, cells, strict=True):
        style = {"state": _COLOURS.get(process["state"], "")}
        row = [Text(each[name], style.get(name, "")) for name in _COLUMNS if name in shown]
        last = log_line(process["last"].expandtabs(4))
        printable = last.encode(console.encoding, "replace").decode(console.encoding)
        table.add_row(*row, *[Text(printable)] * has_log)
    return table


def _cells(process: dict[str, Any]) -> dict[str, str]:
    up, rate = process["up"], process["frames_per_second"]
    return {
        "process": process["name"],
        "host": escape(process["host"]),
        "state": state_label(process["state"]),
        "uptime": "" if up is None else format_duration(up),
        "frames/s": "" if rate is None else f"{rate:,.0f}",
        "CPU": "" if process["cpu"] is None else f"{process['cpu']}%",
        "memory": "" if process["memory"] is None else f"{process['memory']:,} MiB",
        "restarts": str(process["restarts"]),
    }


def _headline(status: dict[str, Any]) -> Text:
    state, age = state_label(status["state"]), format_duration(status["seconds"])
    parts = [f"{status['name']}: {state} | started {age} ago"]
    known = {name: value for name, value in status.items() if value is not None}
    if {"frames", "frames_per_second"} <= known.keys():
        parts += [f"{known['frames']:,.0f} frames", f"{known['frames_per_second']:,.0f}/s"]
    if "episode_return" in known:
        parts.append(f"return {known['episode_return']:.2f}")
    if "policy_lag" in known:
        parts.append(f"lag {known['policy_lag']:.1f}")
    lines = [" | ".join(parts)]
    lines += [status["verdict"]] if "verdict" in status else []
    lines += [status["controller"]["text"]] if status["controller"] else []
    lines += [f"results: {status['logdir']}"]
    lines += [
        f"GPU {gpu['index']} ({gpu['name']}): {gpu['used']}% busy, {gpu['memory']} of {gpu['of']} "
        f"MiB used"
        for gpu in status["gpus"]
    ]
    return Text(escape("\n".join(lines)))


def _describe_controller(run: Run) -> dict[str, Any] | None:
    """Return the status of the run's controller; None if it never had one."""
    report = controller.read(run)
    if report is None:
        return None
    return {
        "state": "lost" if report.is_missing else "running",
        "host": report.host,
        "process": report.process[0],
        "log": report.log,
        "text": report.describe(),
    }


def describe_process(state: State) -> dict[str, Any]:
    """Return one process's status with every key; values that are not known are None."""
    is_running = not state.has_ended and state.state not in ("waits", "starting", "away")
    now = state.time or time.time()  # by the clock of its host, as `since` is
    return {
        "name": state.name,
        "job": state.job,
        "host": state.host,
        "state": state.state,
        "up": round(now - state.since, 1) if is_running and state.since else None,
        "frames_per_second": state.frames_per_second if is_running else None,
        "cpu": state.cpu if is_running else None,
        "memory": state.memory if is_running else None,
        "restarts": state.restarts,
        "code": state.code,
        "failure": state.failure and state.failure._asdict(),
        "last": state.last,
        "log": state.log,
    }


def _summarize_state(record: Record, states: dict[str, State]) -> str:
    learners = states.get(LEARNERS) or State(LEARNERS, "", "", "lost")
    if record.boot != boot_id() and not learners.place:
        return "elsewhere" if record.elsewhere else "stale"
    if learners.state in FINAL_STATES and not all(state.has_ended for state in states.values()):
        return "ending"
    return learners.state


def describe_end(row: dict[str, Any]) -> str:
    """Return how a run has ended, if its last row says so: a learner that is killed does not."""
    verdict = str(row.get("verdict", ""))
    return verdict if verdict.startswith("ended: ") else "ended"


def last_row(path: Path, since: float) -> dict[str, Any]:
    """Return what is shown of metrics.jsonl's last row, empty if an earlier start wrote it."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # missing, or still empty
        if path.stat().st_mtime < since:
            return {}
        with open_inside(path, path.parent) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
        row = from_json(lines[-2])  # every row ends in a newline
        if isinstance(row, dict):
            return {name: row[name] for name in _TOTALS if fits(row.get(name), _TOTALS[name])}
    return {}
