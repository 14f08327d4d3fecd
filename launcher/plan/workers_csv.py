"""The CSV of hosts: reads it and reports every mistake by row and column.

One row is one process, or `count` actors. `process_plan` makes the processes of a run from them.
"""

import csv
import dataclasses
import difflib
import io
import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from impala_mm.config.messages import describe_character, escape, quote
from launcher.supervise.errors import LauncherError

JOBS = ("learner", "actor", "evaluator", "ps")
ANY_LEARNER = -1  # the row of an actor names no learner: actors take the learners in turn
_NO_GPU = ("", "-1", "NoDevFiles")  # values of cuda_visible_devices that name no GPU


class BadCsv(LauncherError):
    """An error in a CSV; its message has a line for each mistake."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """A row. All fields except the first are columns of the CSV."""

    line: int  # line number in the file, for messages
    job: str  # "learner", "actor" or "evaluator"
    ip: str
    tf_port: int = 0  # port at which a learner listens; 0: it takes a free one
    cuda_visible_devices: str = ""
    ssh_port: int = 0  # 0: the port in the SSH configuration, by default 22
    ssh_username: str = ""
    # Never printed, not even in a traceback.
    ssh_password: str = dataclasses.field(default="", repr=False)
    ssh_key_path: str = ""
    count: int = 1  # number of identical actors
    num_envs: int = 0  # environments of each actor; 0: use the flag
    workdir: str = ""
    python: str = ""
    setup: str = ""  # shell commands that run before the process
    learner: int = ANY_LEARNER  # number of the learner that an actor connects to first
    cores: int = 0  # what a process asks a scheduler for (--emit); 0: the job's default
    memory: str = ""  # such as 16Gi; "": it asks for none
    gpus: int = 0  # 0: as many as `cuda_visible_devices` names

    @property
    def gpu_names(self) -> list[str]:
        """The GPUs that `cuda_visible_devices` names; CUDA has values for none, too."""
        return [g for g in self.cuda_visible_devices.split(",") if g not in _NO_GPU]

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of each of the row's processes."""
        return self.gpus or len(self.gpu_names)

    @property
    def num_bytes(self) -> float:
        """The memory of each of the row's processes; 0: it asks for none."""
        found = _MEMORY.fullmatch(self.memory)
        if not found:
            return 0
        unit = found[2] or " "
        return float(found[1]) * (1024 if "i" in unit else 1000) ** " KMGT".index(unit[0].upper())

    @property
    def num_cores(self) -> int:
        """The number of cores that each of the row's processes asks a scheduler for."""
        return self.cores or (4 if self.job == "learner" else 1)


COLUMNS = tuple(f.name for f in dataclasses.fields(Worker) if f.name != "line")
MOST_GPUS = 64  # of a machine
# Minimum and maximum of numeric columns.
_NUMBER_RANGES = {
    "tf_port": (1, 65535),
    "ssh_port": (1, 65535),
    "count": (1, 10_000),
    "num_envs": (1, 100_000),
    "learner": (0, 9_999),
    "cores": (1, 1024),
    "gpus": (1, MOST_GPUS),
}
_LEAST_MEMORY = 2**24  # bytes of a row, with which no process starts
_MOST_MEMORY = 2**45  # no node has more
_HOST = r"(?![-.])[^\s,:/@]{1,253}"  # 253: the maximum in DNS
_MEMORY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(k|[MGT]|[KMGT]i)?")
_GPU = r"\s*(?:[0-9]{1,4}|-1|NoDevFiles|(?:GPU|MIG)-[0-9A-Za-z/-]{1,120})\s*"
_WITH_TABS = ("setup", "ssh_password")  # columns in which a tab is no mistake
_MOST_MISTAKES = 100  # that are reported
_JOB_OF_COLUMN = {"count": "actor", "num_envs": "actor", "learner": "actor", "tf_port": "learner"}


def read(path: str) -> tuple[list[Worker], list[str]]:
    """Return the workers of a CSV file and notes on cells without effect.

    Raises BadCsv, which lists every mistake.
    """
    file, shown = Path(path), escape(path)
    try:
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte-order mark
        mode = file.stat().st_mode
    except OSError as error:
        raise BadCsv(f"{shown}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadCsv(f"{shown}: the file is not UTF-8 text; save it as CSV (UTF-8)") from None
    try:
        rows = iter(list(_split_rows(text)))
    except csv.Error as error:
        raise BadCsv(f"{shown}: {error}") from None
    _, header = next(rows, (0, []))
    mistakes = _header_mistakes(header)
    workers: list[Worker] = []
    notes: list[str] = []
    is_whole = True
    for line, cells in [] if mistakes else rows:
        if len(mistakes) >= _MOST_MISTAKES:
            mistakes.append(f"row {line} and those after it: not read, after so many mistakes")
            is_whole = False
            break
        if len(cells) > len(header):
            mistakes.append(f"row {line}: {len(cells)} cells, but the header has {len(header)}")
            continue
        worker, wrong = _parse_row(line, dict(zip(header, cells, strict=False)))
        mistakes += [f"row {line}, column {column}: {what}" for column, what in wrong]
        if worker.job == "ps":
            notes.append(
                f"row {line}: a ps row is ignored: learners hold the parameters themselves"
            )
        else:
            notes += _unused_columns(worker)
            workers.append(worker)
    if header and is_whole and not _header_mistakes(header):
        bad = {int(found[1]) for each in mistakes if (found := re.match(r"row (\d+)", each))}
        mistakes += _mistakes_between_rows(workers, bad)
    if any(worker.ssh_password for worker in workers) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        mistakes.append(
            f"the file contains passwords and other users can read it: chmod 600 {shown}"
        )
    if mistakes:
        raise BadCsv("\n".join(f"{shown}: {mistake}" for mistake in mistakes))
    return workers, notes


def first_learners(workers: Sequence[Worker]) -> list[tuple[Worker, int]]:
    """Return the row of each actor, and the number of the learner that it connects to first."""
    learners = sum(worker.job == "learner" for worker in workers)
    actors = [row for row in workers if row.job == "actor" for _ in range(row.count)]
    return [
        (row, task % learners if row.learner == ANY_LEARNER else row.learner)
        for task, row in enumerate(actors)
    ]


def _split_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, stripped cells) of every row that is not blank or a comment."""
    # Comments are removed first, since a quote in one would begin a quoted cell.
    # Only a line feed ends a line: `splitlines` would also end one at a control character.
    lines = ["\n" if line.lstrip().startswith("#") else line for line in io.StringIO(text)]
    reader = csv.reader(lines, skipinitialspace=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise csv.Error(f"row {reader.line_num}: {error}; is a closing quote missing?") from None


def _header_mistakes(header: list[str]) -> list[str]:
    if not header:
        return [f"the file is empty; its first row must name the columns: {','.join(COLUMNS)}"]
    mistakes = []
    for column in header:
        if column not in COLUMNS:
            close = difflib.get_close_matches(column, COLUMNS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(COLUMNS)}"
            mistakes.append(f"unknown column {quote(column)}; {hint}")
    mistakes += [
        f"column {column!r} is missing" for column in ("job", "ip") if column not in header
    ]
    mistakes += [f"column {c!r} occurs twice" for c in COLUMNS if header.count(c) > 1]
    return mistakes


def _parse_row(line: int, cells: dict[str, str]) -> tuple[Worker, list[tuple[str, str]]]:
    """Return the worker of one row, and (column, error) for each of its mistakes."""
    wrong = []
    job, ip = cells.get("job", ""), cells.get("ip", "")
    if job not in JOBS:
        close = difflib.get_close_matches(job, JOBS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        wrong.append(("job", f"{quote(job)} is not a job{hint}; use learner, actor or evaluator"))
    if why := address_mistake(ip):
        wrong.append(("ip", why))
    given: dict[str, str | int] = {}
    for column, value in cells.items():
        if column not in {"job", "ip"} and (why := _character_mistake(column, value)):
            wrong.append((column, why))
            continue
        if not value:
            continue
        given[column] = value
        if column == "cuda_visible_devices":
            given[column] = re.sub(r"\s", "", value)
            if why := _gpus_mistake(value):
                wrong.append((column, why))
        if column == "memory" and (why := _memory_mistake(value)):
            wrong.append((column, why))
        if column not in _NUMBER_RANGES:
            continue
        least, most = _NUMBER_RANGES[column]
        if re.fullmatch(r"[0-9]{1,6}", value) and least <= int(value) <= most:
            given[column] = int(value)
            continue
        del given[column]
        what = "port" if column.endswith("port") else "number"
        wrong.append((column, f"{quote(value)} is not a valid {what}; use {least} to {most}"))
    return Worker(**{"line": line, "job": job, "ip": ip} | given), wrong  # type: ignore[arg-type]


def _unused_columns(worker: Worker) -> list[str]:
    """Return a note on each cell that belongs to another job."""
    empty = Worker(0, "", "")
    notes = []
    for column, job in _JOB_OF_COLUMN.items():
        value = getattr(worker, column)
        if worker.job != job and value != getattr(empty, column):
            why = "only learners listen" if column == "tf_port" else f"it is for {job}s"
            notes.append(f"row {worker.line}: {column} {value} is not used: {why}")
    return notes


def _mistakes_between_rows(workers: list[Worker], bad_lines: set[int]) -> list[str]:
    """Return mistakes between rows, except on `bad_lines`, which are reported already."""
    learners = [worker for worker in workers if worker.job == "learner"]
    if not learners:
        return [] if bad_lines else ["no learner: at least one row needs job=learner"]
    mistakes = []
    rows: dict[tuple[str, int], int] = {}
    for worker in learners:
        host = "localhost" if worker.ip == "127.0.0.1" else worker.ip
        other = rows.setdefault((host, worker.tf_port), worker.line)
        if worker.tf_port and other != worker.line and worker.line not in bad_lines:
            mistakes.append(
                f"row {worker.line}, column tf_port: row {other} already uses "
                f"{worker.ip}:{worker.tf_port}; each learner of a host needs its own port"
            )
    for worker in workers:
        if worker.job == "actor" and worker.learner >= len(learners):
            mistakes.append(
                f"row {worker.line}, column learner: there is no learner {worker.learner}; the CSV "
                f"has {len(learners)}, counted from 0"
            )
    return mistakes


def address_mistake(text: str) -> str:
    """Return why a text is neither an address nor a host name that DNS can look up."""
    if wrong := next((each for each in text if not each.isprintable()), ""):
        return f"{quote(text)} {_describe_character(wrong, text)}: remove it"
    what = f"{quote(text)} is not an address or host name"
    if not re.fullmatch(_HOST, text):
        return what + "; for an IPv6 host use its name" * (":" in text)
    try:
        encoded = text.encode("idna").decode()
    except UnicodeError as error:  # one of its parts is empty, too long, or nothing for DNS
        return f"{what}: {error.__cause__ or error}"
    return "" if re.fullmatch(_HOST, encoded) else f"{what}: DNS reads it as {encoded!r}"


def _character_mistake(column: str, text: str) -> str:
    """Return which control character a text contains; a password is not shown."""
    allowed = "\t" if column in _WITH_TABS else ""
    controls = (c for c in text if unicodedata.category(c) == "Cc" and c not in allowed)
    if not (wrong := next(controls, "")):
        return ""
    shown = "the value" if column == "ssh_password" else quote(text)
    if wrong in "\r\n":
        return f"{shown} contains a line break, which no process can get"
    return f"{shown} {_describe_character(wrong, text)}: remove it"


def _describe_character(wrong: str, text: str) -> str:
    kind = "a control" if unicodedata.category(wrong) == "Cc" else "an invisible"
    position = text.index(wrong) + 1
    return f"contains {kind} character, {describe_character(wrong)}, at position {position}"


def _memory_mistake(text: str) -> str:
    """Return why a text is not an amount of memory that a process may need."""
    if not _MEMORY.fullmatch(text):
        return f"{quote(text)} is not an amount of memory; write bytes as 16Gi, 500M or 64000000000"
    size = Worker(0, "", "", memory=text).num_bytes
    if size < _LEAST_MEMORY:
        return f"no process starts with {quote(text)} bytes of memory; write them as 16Gi or 500M"
    return f"no machine has {quote(text)} bytes of memory" if size > _MOST_MEMORY else ""


def _gpus_mistake(text: str) -> str:
    """Return why a text is not a value of CUDA_VISIBLE_DEVICES."""
    if re.fullmatch(f"{_GPU}(?:,{_GPU})*", text):
        return ""
    return (
        f"{quote(text)} is not a list of GPUs; use numbers or UUIDs (GPU-..., MIG-...), separated "
        f"by commas, or -1 for none"
    )
