"""The files on this machine that other hosts get: the project's, wheels, modules of the user."""

import fnmatch
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.plan import project
from launcher.supervise.deployed_files import MANIFEST, digest
from launcher.supervise.errors import LauncherError

# Never copied, even if git tracks them: each host makes its own, or they are private.
_EXCLUDED = (
    *(".git", ".venv", "runs", "wheelhouse", "__pycache__", ".setup.*", "workers.csv"),
    "*-token",  # the folder of a run's token, from --emit
    MANIFEST,
)
_NOT_NEEDED = "tests/"  # of the project, on hosts
_NO_CSV = (".py", ".md", ".example")  # of files that may name the column
_PASSWORD_COLUMN = re.compile(rb"^(?!\s*#).*\bssh_password\b", re.MULTILINE)
_GIT_SECONDS = 60.0
_CHUNK = 1 << 18
_MAX_ADDED = 200_000_000  # bytes of users' modules


class FileSet(NamedTuple):
    """Files for a folder of a host: their paths here, their states and their digests, by name."""

    paths: dict[str, Path]
    states: dict[str, os.stat_result]
    digests: dict[str, str]

    @classmethod
    def of(cls, paths: dict[str, Path]) -> "FileSet":
        """Read the files."""
        states = {name: path.lstat() for name, path in paths.items()}
        return cls(paths, states, {name: digest(path) for name, path in paths.items()})


def list_project_files() -> dict[str, Path]:
    """Return by name all files of the project that a host needs, new files included."""
    return list_clone(project.ROOT) if project.IS_CLONE else project.installed_files()


def list_clone(root: Path) -> dict[str, Path]:
    """Return by name the files of a clone that a host needs.

    In a git clone these are the files that git does not ignore; elsewhere all files except those
    that .gitignore names.
    """
    names = _list_by_git(root) if (root / ".git").exists() else None
    if names is None:
        names = _list_by_walking(root)
    found = {}
    for name in sorted(names):
        path = root / name
        is_excluded = any(_matches(part, _EXCLUDED) for part in Path(name).parts)
        is_excluded |= name.startswith(_NOT_NEEDED)
        exists = path.is_file() or path.is_symlink()
        if exists and not is_excluded and not _has_passwords(path):
            found[name] = path
    return found


def choose_added(files: Mapping[str, Path], added: Mapping[str, Path]) -> dict[str, Path]:
    """Return those of the user's `added` files that are not among the project's `files`.

    Raise LauncherError if one of them has the name of another file of the project, or if together
    they are too large.
    """
    root = project.ROOT.resolve()
    tops = {name.partition("/")[0] for name in files}
    new = {
        name: path
        for name, path in added.items()
        if not _has_passwords(path)
        and (name not in files or path.resolve() != files[name].resolve())
    }
    for name, path in new.items():
        taken = root not in path.resolve().parents and name.partition("/")[0] in tops
        if name in files or taken:
            raise LauncherError(
                f"{path} cannot be copied to hosts as {name}, which the project has"
            )
    size = sum(path.stat().st_size for path in new.values())
    if size > _MAX_ADDED:
        largest = max(new.values(), key=lambda path: path.stat().st_size)
        raise LauncherError(
            f"your modules have {size / 1e6:,.0f} MB of files, and --deploy copies at most "
            f"{_MAX_ADDED / 1e6:,.0f} MB: move data such as {largest} out of their folders"
        )
    return new


def list_all_files(folder: Path) -> dict[str, Path]:
    """Return all files in a folder by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path for path in paths}


def _list_by_git(root: Path) -> list[str] | None:
    """Return the names of the files that git does not ignore; None if git fails or is missing."""
    # Git refuses a clone that belongs to another user; none of its programs are run here.
    safe = ["-c", f"safe.directory={root}", "-c", "core.fsmonitor=false"]
    listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        ran = subprocess.run(
            ["git", *safe, *listing],
            cwd=root,
            capture_output=True,
            check=False,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if ran.returncode else [os.fsdecode(n) for n in ran.stdout.split(b"\0") if n]


def _list_by_walking(root: Path) -> list[str]:
    ignored = list(_EXCLUDED)
    if (root / ".gitignore").exists():
        ignored += [line.strip("/") for line in (root / ".gitignore").read_text().split()]
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _matches(name, ignored)]
        wanted = [name for name in names if not _matches(name, ignored)]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in wanted]
    return found


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _has_passwords(path: Path) -> bool:
    """Return whether a file is a CSV of hosts with passwords, which only the frontend needs.

    It may have any name, such as that of an editor's backup.
    """
    if path.suffix in _NO_CSV or not path.is_file():
        return False
    with path.open("rb") as file:
        return bool(_PASSWORD_COLUMN.search(file.read(_CHUNK)))
