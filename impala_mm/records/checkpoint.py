"""Checkpoints: each a folder that appears complete or not at all, and is verified before use.

    LOGDIR/checkpoints/
        0000012000/          named by the number of updates made
            variables.*      trained and carried variables, as tf.train.Checkpoint writes them
            about.json       `CheckpointInfo`, and the size and SHA-256 of each of these files
        saving/              a checkpoint being written; renamed once all of it is on the disk

This module finds a checkpoint and reads its description, without TensorFlow; `saved_variables`
reads and writes the variables. `run_checkpoints` has those of a run: `learner.checkpointing` saves
them, and resumes from the newest intact one. `finish` and `verify_files` serve other folders, too:
`learner.own_state` keeps what each learner has for itself in such ones.
"""

import contextlib
import difflib
import hashlib
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.config import environment_flags
from impala_mm.config.errors import BadCheckpoint, ImpalaError, UserMistake
from impala_mm.runtime import safe_files
from impala_mm.runtime.safe_files import from_json, to_json

MILESTONES = 10  # milestone checkpoints over the total frames of a run


class CheckpointInfo(NamedTuple):
    """The description of a checkpoint, from its about.json."""

    learners: int
    settings: dict[str, Any]  # all flags of the run
    made_of: dict[str, Any]  # by flag, the properties that a run resumed from it must share
    versions: dict[str, str]  # versions of Python and packages
    updates: int = 0
    steps: int = 0  # environment steps of all learners
    frames: float = 0.0  # environment frames of all learners
    seconds: float = 0.0  # of training, since the first unroll of each start
    episode_return: float | None = None  # mean over the last 100 complete games; None before 100
    milestone: bool = False  # the first one after another tenth of the run's frames; it is kept
    # By rank, the digest of each learner's own state, see `learner.own_state`; empty where it could
    # not be saved. () if learners have none.
    own_states: tuple[str, ...] = ()
    offline_updates: int = 0  # those of the updates that were made from recorded games
    # Of the policies against their opponents, see `ratings`.
    ratings: dict[str, float] = {}  # noqa: RUF012 - nobody changes it


class Damaged(UserMistake, BadCheckpoint):
    """A folder's files differ from what was written; the message says how."""


class Mismatch(UserMistake, BadCheckpoint):
    """A checkpoint does not fit the network or run; the message says why."""


class Missing(UserMistake, BadCheckpoint):
    """A path holds no checkpoint; the message says what is there."""


class Unwritable(ImpalaError):
    """A checkpoint could not be written to the disk; the message says why."""


def verify(path: Path) -> CheckpointInfo:
    """Return a checkpoint's description if all its files are intact; raises Damaged otherwise."""
    about = read(path)
    if about is None:
        raise Damaged(f"{path} has no about.json that can be read")
    verify_files(path)
    return about


def find(path: str | Path, best: bool = False) -> tuple[Path, CheckpointInfo]:
    """Return the checkpoint at this path, or the newest or best intact one of the run at it.

    The path may also be the name of a policy that comes with this package.

    Raises Damaged if none is intact, and Missing if there is none.
    """
    path = resolve(path)
    if missing := why_missing(path):
        raise Missing(missing)
    if (path / "about.json").exists():
        return path, read_intact(path)
    found = of_run(path)
    order = sorted(found, key=_mean_return) if best else found
    reasons = []
    for each in reversed(order):
        try:
            return each, read_intact(each)
        except Damaged as error:
            reasons.append(str(error))
    raise Damaged(f"no checkpoint of {path} is intact: {reasons[0]}")


def read_intact(path: Path) -> CheckpointInfo:
    """Return a verified description, with the paths that a moved run has now.

    Raises Damaged if it is not intact.
    """
    about = verify(path)
    return about._replace(settings=environment_flags.relocated(about.settings, path))


def best_of(paths: Sequence[Path]) -> Path | None:
    """Return the newest checkpoint with the highest mean return; None if no return is known."""
    known = [path for path in paths if _mean_return(path)[0] > -math.inf]
    return max(known, key=_mean_return, default=None)


def _mean_return(path: Path) -> tuple[float, str]:
    """Return (mean return, folder name), by which checkpoints are sorted."""
    about = read(path)
    known = about.episode_return if about else None
    return (-math.inf if known is None else known, path.name)


def read(path: Path) -> CheckpointInfo | None:
    """Return a checkpoint's description without verifying it; None if it cannot be read."""
    try:
        content = from_json((path / "about.json").read_text())
        missing = {"own_states": (), "offline_updates": 0, "ratings": {}}  # in earlier versions
        content = missing | content
        content["own_states"] = tuple(content["own_states"])
        about = CheckpointInfo(**{name: content[name] for name in CheckpointInfo._fields})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return about if _has_possible_values(about) else None


def _has_possible_values(about: CheckpointInfo) -> bool:
    """Return whether a description has the types and numbers that its readers rely on."""
    counts = (about.learners, about.updates, about.steps, about.offline_updates)
    amounts = [about.frames, about.seconds]
    return (
        all(type(each) is int and 0 <= each < 2**63 for each in counts)
        and all(type(each) in (int, float) and 0 <= each < math.inf for each in amounts)
        and type(about.episode_return) in (int, float, type(None))
        and all(
            isinstance(each, dict)
            for each in (about.settings, about.made_of, about.versions, about.ratings)
        )
        and all(isinstance(each, str) for each in about.own_states)
        and all(type(each) in (int, float) for each in about.ratings.values())
    )


_SHIPPED = Path(__file__).resolve().parents[1] / "shipped_policies"


def shipped_names() -> list[str]:
    """Return the names of the policies that come with this package."""
    return sorted(path.parent.name for path in _SHIPPED.glob("*/about.json"))


def resolve(given: str | Path) -> Path:
    """Return the folder that a user means: a path, or else the name of a policy of this package.

    In an export, it is the folder with the weights.
    """
    with contextlib.suppress(OSError):  # `why_missing` says what is wrong with it
        if not Path(given).exists() and str(given) in shipped_names():
            return _SHIPPED / given
        exported = Path(given) / "variables"
        if (exported / "about.json").exists():
            return exported
    return Path(given)


def all_in(folder: Path) -> list[Path]:
    """Return a folder's checkpoints, oldest first, without copies that the user has renamed."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


def of_run(logdir: str | Path) -> list[Path]:
    """Return the checkpoints of the run in a folder likewise; none if no folder is named."""
    return all_in(Path(logdir) / "checkpoints") if logdir else []


def why_missing(path: Path) -> str:
    """Return why a path holds neither a checkpoint nor a run with one; empty if it holds one."""
    try:
        return _why_missing(path)
    except OSError as error:  # such as a folder that this user may not enter
        return f"{path}: {error.strerror}"


def _why_missing(path: Path) -> str:
    if (path / "about.json").exists() or of_run(path):
        return ""
    if not path.is_dir():
        return f"{path} {'is a file' if path.exists() else f'does not exist{_hint(path)}'}"
    has_run = (path / "metrics.jsonl").exists()
    return f"{path} {'holds no checkpoint yet' if has_run else 'is not the folder of a run'}"


def _hint(path: Path) -> str:
    """Return the policies that may be meant by a path that does not exist; usually none."""
    names = shipped_names()
    if len(path.parts) > 1 or not names:
        return ""
    near = difflib.get_close_matches(str(path), names, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{meant} (policies of this package: {', '.join(names)})"


def finish(work: Path, final: Path, about: dict[str, Any]) -> None:
    """Rename the folder `work` to `final` once all that it holds is on the disk.

    `about` and each file's size and SHA-256 are written to its about.json. Raises OSError.
    """
    paths = write_about(work, about)
    for path in [*paths, work / "about.json", work]:
        safe_files.flush_to_disk(path)
    work.rename(final)
    safe_files.flush_to_disk(final.parent)


def write_about(folder: Path, about: dict[str, Any]) -> list[Path]:
    """Write `about` and the files' sizes and SHA-256 to a folder's about.json; return the files."""
    paths = sorted(folder.rglob("*"))
    files = {str(p.relative_to(folder)): _fingerprint(p) for p in paths if p.is_file()}
    (folder / "about.json").write_text(to_json(about | {"files": files}))
    return paths


def change(folder: Path, numbers: dict[str, Any]) -> None:
    """Replace numbers of a folder's about.json; raise OSError, and ValueError if it is damaged."""
    path = folder / "about.json"
    about = from_json(path.read_text())
    if about | numbers != about:
        safe_files.write_whole(path, to_json(about | numbers).encode())


def verify_files(path: Path) -> None:
    """Raise Damaged if a file differs from the description in about.json, or cannot be read."""
    try:
        files = from_json((path / "about.json").read_text())["files"]
        sizes = {name: int(size) for name, (size, _) in files.items()}
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{path} has no about.json that can be read") from None
    for name, written in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Damaged(f"{path}/about.json names a file elsewhere: {name}")
        try:
            found = _fingerprint(path / name)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise Damaged(f"{path / name} cannot be read: {why}") from None
        if found != written:
            what = "cut short" if found[0] < sizes[name] else "changed"
            raise Damaged(f"{path / name} is {what} since it was written")


def size(path: Path) -> int:
    """Return the number of bytes of a folder's files; those that vanish meanwhile do not count."""
    total = 0
    for each in path.rglob("*"):
        try:
            total += each.stat().st_size if each.is_file() else 0
        except OSError:
            continue
    return total


def refuse_full_disk(folder: Path, needed: int) -> None:
    """Raise OSError if the disk of an existing folder has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"the disk of {folder.parent} has {free / 1e6:,.1f} MB free, and the last save took "
            f"{needed / 1e6:,.1f} MB"
        )


def _fingerprint(path: Path) -> list[Any]:
    """Return a file's [size in bytes, SHA-256]. Raises OSError, and ValueError for a pipe."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]
