"""The CSV of hosts: read, checked row by row, and each mistake named by row and column.

One row is one process, or `count` actors. What becomes of them `process_plan` decides.
"""

import csv
import dataclasses
import difflib
import re
import stat
from collections.abc import Iterator
from pathlib import Path

JOBS = ("learner", "actor", "evaluator", "ps")
ANY_LEARNER = -1  # an actor that names none: learners are taken in turn
_FIRST_PORT = 8001  # of a host's learners that name none


class BadCsv(Exception):
    """All that is wrong with a CSV, one line per mistake."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """One row. Its fields, but for the first, are the CSV's columns."""

    line: int  # in the file, for messages
    job: str  # "learner", "actor" or "evaluator"
    ip: str
    tf_port: int = 0  # where a learner listens; actors listen nowhere
    cuda_visible_devices: str = ""
    ssh_port: int = 0  # 0: as the SSH configuration says, else 22
    ssh_username: str = ""
    # Never printed, not even in a traceback.
    ssh_password: str = dataclasses.field(default="", repr=False)
    ssh_key_path: str = ""
    count: int = 1  # so many actors
    num_envs: int = 0  # of an actor; 0: as the flag says
    workdir: str = ""
    python: str = ""
    setup: str = ""  # shell commands before its process
    learner: int = ANY_LEARNER  # that an actor begins with


COLUMNS = tuple(f.name for f in dataclasses.fields(Worker) if f.name != "line")
# Least and most of what is a number.
_NUMBER_RANGES = {
    "tf_port": (1, 65535),
    "ssh_port": (1, 65535),
    "count": (1, 10_000),
    "num_envs": (1, 100_000),
    "learner": (0, 9_999),
}
_JOB_OF_COLUMN = {"count": "actor", "num_envs": "actor", "learner": "actor", "tf_port": "learner"}


def read(path: str) -> tuple[list[Worker], list[str]]:
    """The workers of a CSV file and notes on what it says in vain; BadCsv lists every mistake."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte-order mark
        mode = file.stat().st_mode
    except OSError as error:
        raise BadCsv(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadCsv(f"{path}: this is no UTF-8 text; save it as CSV (UTF-8)") from None
    try:
        rows = iter(list(_split_rows(text)))
    except csv.Error as error:
        raise BadCsv(f"{path}: {error}") from None
    _, header = next(rows, (0, []))
    mistakes = _header_mistakes(header)
    workers: list[Worker] = []
    notes: list[str] = []
    for line, cells in [] if mistakes else rows:
        if len(cells) > len(header):
            mistakes.append(f"row {line}: {len(cells)} cells, and the header names {len(header)}")
            continue
        worker, wrong = _parse_row(line, dict(zip(header, cells, strict=False)))
        mistakes += [f"row {line}, column {column}: {what}" for column, what in wrong]
        if worker.job == "ps":
            notes.append(f"row {line}: a ps row, which starts nothing: parameters stay at learners")
        else:
            notes += _unused_columns(worker)
            workers.append(worker)
    if header and not _header_mistakes(header):
        workers = _with_ports(workers)
        bad = {int(found[1]) for each in mistakes if (found := re.match(r"row (\d+)", each))}
        mistakes += _mistakes_between_rows(workers, bad)
    if any(worker.ssh_password for worker in workers) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        mistakes.append(f"it holds passwords, and others can read it: chmod 600 {path}")
    if mistakes:
        raise BadCsv("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return workers, notes


def _split_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, stripped cells) of every row that is neither blank nor a comment."""
    # A quote in a comment opens nothing.
    lines = ["\n" if line.lstrip().startswith("#") else line for line in text.splitlines(True)]
    reader = csv.reader(lines, skipinitialspace=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if any(cells):
            yield reader.line_num, cells


def _header_mistakes(header: list[str]) -> list[str]:
    if not header:
        return [f"empty; its first row must name the columns: {','.join(COLUMNS)}"]
    mistakes = []
    for column in header:
        if column not in COLUMNS:
            close = difflib.get_close_matches(column, COLUMNS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(COLUMNS)}"
            mistakes.append(f"unknown column {column!r}; {hint}")
    mistakes += [
        f"column {column!r} is missing" for column in ("job", "ip") if column not in header
    ]
    mistakes += [f"column {c!r} stands twice" for c in COLUMNS if header.count(c) > 1]
    return mistakes


def _parse_row(line: int, cells: dict[str, str]) -> tuple[Worker, list[tuple[str, str]]]:
    """The worker of one row, and (column, what is wrong) for each of its mistakes."""
    wrong = []
    job, ip = cells.get("job", ""), cells.get("ip", "")
    if job not in JOBS:
        close = difflib.get_close_matches(job, JOBS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        wrong.append(("job", f"{job!r} is no job{hint}; write learner, actor or evaluator"))
    if not re.fullmatch(r"[^\s,:/@]+", ip):
        also = "; of IPv6 hosts, give the name" if ":" in ip else ""
        wrong.append(("ip", f"{ip!r} is no address or host name{also}"))
    given: dict[str, str | int] = {}
    for column, value in cells.items():
        if "\n" in value or "\r" in value or "\0" in value:
            wrong.append((column, f"{value!r} holds a line's end; no process can be told that"))
        if not value:
            continue
        given[column] = value
        if column not in _NUMBER_RANGES:
            continue
        least, most = _NUMBER_RANGES[column]
        if re.fullmatch(r"[0-9]{1,6}", value) and least <= int(value) <= most:
            given[column] = int(value)
            continue
        del given[column]
        what = "port" if column.endswith("port") else "such number"
        wrong.append((column, f"{value!r} is no {what}; write a number from {least} to {most}"))
    return Worker(**{"line": line, "job": job, "ip": ip} | given), wrong  # type: ignore[arg-type]


def _unused_columns(worker: Worker) -> list[str]:
    """What a row says that is of another job."""
    empty = Worker(0, "", "")
    notes = []
    for column, job in _JOB_OF_COLUMN.items():
        value = getattr(worker, column)
        if worker.job != job and value != getattr(empty, column):
            why = "only learners listen" if column == "tf_port" else f"it is of {job}s"
            notes.append(f"row {worker.line}: {column} {value} is not used: {why}")
    return notes


def _with_ports(workers: list[Worker]) -> list[Worker]:
    """Learners that name none take the next that is free on their host."""
    taken = {(worker.ip, worker.tf_port) for worker in workers}
    found = []
    for worker in workers:
        port = worker.tf_port
        if worker.job == "learner" and not port:
            port = _FIRST_PORT
            while (worker.ip, port) in taken:
                port += 1
            taken.add((worker.ip, port))
        found.append(dataclasses.replace(worker, tf_port=port))
    return found


def _mistakes_between_rows(workers: list[Worker], bad_lines: set[int]) -> list[str]:
    """Finds rows that exclude each other; says nothing of `bad_lines` twice."""
    learners = [worker for worker in workers if worker.job == "learner"]
    if not learners:
        return [] if bad_lines else ["no learner: at least one row needs job=learner"]
    mistakes = []
    rows: dict[tuple[str, int], int] = {}
    for worker in learners:
        host = "localhost" if worker.ip == "127.0.0.1" else worker.ip
        other = rows.setdefault((host, worker.tf_port), worker.line)
        if other != worker.line and worker.line not in bad_lines:
            mistakes.append(
                f"row {worker.line}, column tf_port: {worker.ip}:{worker.tf_port} is taken by "
                f"row {other}; each learner of a host needs a port of its own"
            )
    for worker in workers:
        if worker.job == "actor" and worker.learner >= len(learners):
            mistakes.append(
                f"row {worker.line}, column learner: there is no learner {worker.learner}; there "
                f"are {len(learners)}, counted from 0"
            )
    return mistakes
