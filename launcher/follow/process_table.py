"""The table of a run's processes, as wide as the terminal: a narrow one shows fewer columns."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, OverflowMethod
from rich.table import Table
from rich.text import Text

from impala_mm.config.messages import escape, log_line
from impala_mm.runtime.timing import format_duration

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
_GAP = 2  # characters between two columns
_LEAST_LOG = 16  # characters of the last log line below which it is left out


class _Column(NamedTuple):
    """A column of the table."""

    name: str
    rank: int  # columns with the highest ranks are left out first
    number: bool = False


_COLUMNS = (
    _Column("process", 0),
    _Column("host", 5),
    _Column("state", 1),
    _Column("uptime", 3, number=True),
    _Column("frames/s", 2, number=True),
    _Column("CPU", 6, number=True),
    _Column("memory", 7, number=True),
    _Column("restarts", 4, number=True),
)


def state_label(state: str) -> str:
    """Return a state as messages and the table show it."""
    return _STATE_LABELS.get(state, state)


class ProcessTable:
    """A table with a row for each process of a snapshot; rich draws it."""

    def __init__(self, processes: Sequence[dict[str, Any]]):
        self._rows = [_cells(process) for process in processes]
        self._colours = [_COLOURS.get(process["state"], "") for process in processes]
        self._last = [process["last"] for process in processes]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Yield the table for the width and the encoding of a console."""
        del console
        widths = [
            max(map(cell_len, (column.name, *(cells[i] for cells in self._rows))))
            for i, column in enumerate(_COLUMNS)
        ]
        shown = _fitting_columns(widths, options.max_width)
        rest = options.max_width - sum(widths[i] + _GAP for i in shown)
        # Other encodings lack the character of an ellipsis.
        cut: OverflowMethod = "crop" if options.ascii_only else "ellipsis"
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for i in shown:
            table.add_column(
                _COLUMNS[i].name,
                justify="right" if _COLUMNS[i].number else "left",
                no_wrap=True,
                overflow=cut,
                min_width=None if i else widths[i],  # the state is cut before the name
            )
        if rest >= _LEAST_LOG:
            table.expand = True
            table.add_column("last log line", no_wrap=True, overflow=cut, ratio=1)
        for cells, colour, last in zip(self._rows, self._colours, self._last, strict=True):
            row = [Text(cells[i], style=colour if i == 2 else "") for i in shown]
            line = [Text(_printable(last, options.encoding))] if rest >= _LEAST_LOG else []
            table.add_row(*row, *line)
        yield table


def _fitting_columns(widths: Sequence[int], width: int) -> list[int]:
    """Return the indices of the columns that fit into a width; always those of the first ranks."""
    shown: list[int] = []
    for i in sorted(range(len(widths)), key=lambda i: _COLUMNS[i].rank):
        if _COLUMNS[i].rank > 1 and sum(widths[j] + _GAP for j in (*shown, i)) - _GAP > width:
            break
        shown.append(i)
    return sorted(shown)


def _printable(text: str, encoding: str) -> str:
    """Return a line of a log with `?` for each character that an encoding lacks."""
    return log_line(text.expandtabs(4)).encode(encoding, "replace").decode(encoding)


def _cells(process: dict[str, Any]) -> list[str]:
    rate = process["frames_per_second"]
    return [
        process["name"],
        escape(process["host"]),
        state_label(process["state"]),
        "" if process["up"] is None else format_duration(process["up"]),
        "" if rate is None else f"{rate:,.0f}",
        "" if process["cpu"] is None else f"{process['cpu']}%",
        "" if process["memory"] is None else f"{process['memory']:,} MiB",
        str(process["restarts"]),
    ]
