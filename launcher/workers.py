"""The CSV of hosts: read, checked row by row, and grouped into worker sets.

One row is one process. A learner and the actors that feed it are a worker set; actors are dealt to
the learners in turn, in the order of their rows.
"""

import csv
import dataclasses
import difflib
import io
import re
from collections.abc import Iterator
from pathlib import Path

COLUMNS = (
    "job",
    "ip",
    "tf_port",
    "cuda_visible_devices",
    "ssh_port",
    "ssh_username",
    "ssh_password",
)
_JOBS = ("learner", "actor", "evaluator", "ps")


class BadCsv(Exception):
    """All that is wrong with a CSV, one line per mistake."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """One row: a process and where it runs."""

    line: int  # in the file, for messages
    job: str  # "learner", "actor" or "evaluator"
    ip: str
    tf_port: int | None  # where a learner listens; actors listen nowhere
    cuda_visible_devices: str
    ssh_port: int
    ssh_username: str
    ssh_password: str = dataclasses.field(repr=False)  # never printed, not even in a traceback


@dataclasses.dataclass(frozen=True)
class WorkerSet:
    """One learner with its actors."""

    learner: Worker
    actors: tuple[Worker, ...]


def read(path: str) -> tuple[list[Worker], list[str]]:
    """The workers of a CSV file and notes on what it says in vain; BadCsv lists every mistake."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # spreadsheets write a byte-order mark
    except OSError as error:
        raise BadCsv(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadCsv(f"{path}: this is no UTF-8 text; save it as CSV (UTF-8)") from None
    try:
        rows = iter(list(_rows(text)))
    except csv.Error as error:
        raise BadCsv(f"{path}: {error}") from None
    _, header = next(rows, (0, []))
    mistakes = _header_mistakes(header)
    workers, notes, ports = [], [], dict[tuple[str, int], int]()
    for line, cells in [] if mistakes else rows:
        if len(cells) > len(header):
            mistakes.append(f"row {line}: {len(cells)} cells, and the header names {len(header)}")
            continue
        worker, wrong = _worker(line, dict(zip(header, cells, strict=False)))
        mistakes += [f"row {line}, column {column}: {what}" for column, what in wrong]
        if worker.job == "ps":
            notes.append(f"row {line}: a ps row, which starts nothing: parameters stay at learners")
            continue
        if worker.job in {"actor", "evaluator"} and worker.tf_port is not None:
            notes.append(f"row {line}: tf_port {worker.tf_port} is not used: only learners listen")
        if worker.job == "learner" and worker.tf_port is not None:
            other = ports.setdefault((worker.ip, worker.tf_port), line)
            if other != line:
                mistakes.append(
                    f"row {line}, column tf_port: {worker.ip}:{worker.tf_port} is taken by "
                    f"row {other}; each learner of a host needs a port of its own"
                )
        workers.append(worker)
    if not mistakes and not any(worker.job == "learner" for worker in workers):
        mistakes.append("no learner: at least one row needs job=learner")
    if mistakes:
        raise BadCsv("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return workers, notes


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, stripped cells) of every row that is neither blank nor a comment."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if any(cells) and not cells[0].startswith("#"):
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


def _worker(line: int, cells: dict[str, str]) -> tuple[Worker, list[tuple[str, str]]]:
    """The worker of one row, and (column, what is wrong) for each of its mistakes."""
    wrong = []
    job = cells.get("job", "")
    if job not in _JOBS:
        close = difflib.get_close_matches(job, _JOBS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        wrong.append(("job", f"{job!r} is no job{hint}; write learner, actor or evaluator"))
    ip = cells.get("ip", "")
    if not ip or any(character.isspace() for character in ip):
        wrong.append(("ip", f"{ip!r} is no address or host name"))

    def port(column: str) -> int | None:
        value = cells.get(column, "")
        if not value:
            return None
        if not (re.fullmatch(r"[0-9]{1,5}", value) and 1 <= int(value) <= 65535):
            wrong.append((column, f"{value!r} is no port; write a number from 1 to 65535"))
            return None
        return int(value)

    tf_port, ssh_port = port("tf_port"), port("ssh_port")
    if job == "learner" and not cells.get("tf_port"):
        wrong.append(("tf_port", "a learner needs a port, where its actors reach it"))
    worker = Worker(
        line=line,
        job=job,
        ip=ip,
        tf_port=tf_port,
        cuda_visible_devices=cells.get("cuda_visible_devices", ""),
        ssh_port=ssh_port or 22,
        ssh_username=cells.get("ssh_username", ""),
        ssh_password=cells.get("ssh_password", ""),
    )
    return worker, wrong


def worker_sets(workers: list[Worker]) -> list[WorkerSet]:
    """Each learner with every n-th actor, n being the number of learners."""
    learners = [worker for worker in workers if worker.job == "learner"]
    actors = [worker for worker in workers if worker.job == "actor"]
    return [
        WorkerSet(learner, tuple(actors[i :: len(learners)])) for i, learner in enumerate(learners)
    ]
