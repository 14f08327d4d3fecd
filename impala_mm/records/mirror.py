"""--mirror: a copy of a run's folder in object storage, from which another machine resumes the run.

    URL/starts.jsonl, settings.json, metrics.jsonl, ...    the files of the run's folder
    URL/checkpoints/0000012000/                            the same files as there; about.json last

A store has no rename, so that a checkpoint counts from the moment when its about.json is there: it
is uploaded last, and deleted first. The lines of starts.jsonl tell which of two copies of a run is
newer: one has all those of the other. Where each has starts of its own, the store's is taken.

A thread of rank 0 uploads. It looks at the folder alone: training does not wait for it.
"""

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from impala_mm.config import flags
from impala_mm.config.messages import describe_error
from impala_mm.records import checkpoint
from impala_mm.runtime.log import Say

_PERIOD_SECONDS = 20.0
_START_SECONDS = 60.0  # how long a start tries to reach the store
_LAST_SECONDS = 60.0  # how long the end of a run waits for the last upload
# A file that is larger is uploaded again once it has grown by a hundredth, and at the end.
_LARGE = 4 << 20  # bytes
_STARTS, _ABOUT = "starts.jsonl", "about.json"
# slurm/ has the token and the addresses of one job.
_LOCAL_ONLY = {"lock", "save-now", "slurm"}
_IN_ORDER = {"checkpoints", "own", _STARTS}  # copied each in its turn, not with the other files
_UNFINISHED = {"saving", "copying"}  # folders that are being written
_State = tuple[int, int]  # of a file that was uploaded: bytes, and nanoseconds of its change


class _NoLongerOurs(Exception):
    """The mirror is another process's, or the folder another run's: a sentence that says so."""


def open_store(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL and the path in it; refuse what cannot be one."""
    try:
        import fsspec  # noqa: PLC0415
    except ImportError:
        flags.refuse(
            f"--mirror={url}: it needs the package fsspec, and for s3:// s3fs: `pip install s3fs`"
        )
    try:
        store, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # no package for its protocol, or no such protocol
        flags.refuse(f"--mirror={url}: {error}")
    if not (root := root.rstrip("/")):
        flags.refuse(f"--mirror={url}: write a folder of the run's own, such as s3://bucket/run")
    if hasattr(store, "auto_mkdir"):
        store.auto_mkdir = True  # of local files: stores have no folders to be made
    return store, root


class Mirror:
    """The mirror of the run in a folder of this machine."""

    def __init__(self, url: str, folder: Path, say: Say):
        self._url, self._folder, self._say = url, folder, say
        self._store, self._root = open_store(url)
        is_local = "file" in self._store.protocol
        if is_local and Path(self._root).is_relative_to(folder.resolve()):
            flags.refuse(f"--mirror={url} lies in the run's own folder {folder}")
        self._starts = b""  # what the mirror's starts.jsonl contains
        self._seen = b""  # what the folder's contained when an upload was last due
        self._uploaded: dict[str, _State] = {}  # by path in the folder
        self._saves = set[str]()  # folders of the mirror with an about.json, or a part of one
        self._failure = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")

    # -- The start of a run

    def begin(self) -> None:
        """Download the run if the mirror has a newer state of it, then upload from time to time.

        Another run's mirror, and one that cannot be read and written, is refused.
        """
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._restore()
                break
            except Exception as error:  # each store has exceptions of its own
                no_such = isinstance(error, (PermissionError, FileNotFoundError))
                if (no_such and not self._starts) or time.monotonic() > until:
                    flags.refuse(
                        f"--mirror={self._url} cannot be read and written, and may hold a state of "
                        f"the run: {describe_error(error)}"
                    )
                self._say(f"{self._url} cannot be reached ({describe_error(error)}): trying again")
                time.sleep(5)
        self._seen = self._local_starts()
        self._thread.start()

    def _restore(self) -> None:
        began, here = time.monotonic(), self._local_starts()
        self._starts = self._read(_STARTS)
        if here and self._starts and here.splitlines()[0] != self._starts.splitlines()[0]:
            flags.refuse(
                f"--mirror={self._url} holds another run than --logdir={self._folder}: give each "
                f"run a mirror of its own"
            )
        if not self._starts:
            self._store.pipe_file(self._path(_STARTS), b"")  # whether it can be written
            return
        names = [name.removeprefix(f"{self._root}/") for name in self._store.find(self._root)]
        names = [name for name in names if ".." not in PurePosixPath(name).parts]
        self._saves = {save for name in names if (save := _save_of(name))}
        # Own states first, as checkpoints name them; then the newest checkpoint.
        saves = sorted(self._saves, reverse=True)
        complete = {s: self._read(f"{s}/{_ABOUT}") for s in saves if f"{s}/{_ABOUT}" in names}
        local = self._local_saves()
        is_newer = not here.startswith(self._starts) or (
            _has_checkpoint(complete) and not _has_checkpoint(local)  # deleted here
        )
        for name, path in local.items():
            if (content := _content(path / _ABOUT)) and content == complete.get(name):
                self._uploaded[f"{name}/{_ABOUT}"] = _state(path / _ABOUT)
            elif is_newer:  # saved here, but not uploaded before the run went on elsewhere
                path.rename(path.with_name(f"former-{path.name}-{time.time():.0f}"))
        if not is_newer:
            return
        for save in complete:
            final = self._folder / save
            if not final.exists():
                work = final.with_name(f".{final.name}.part")
                for name in names:
                    if _save_of(name) == save:
                        self._download(name, work / PurePosixPath(name).relative_to(save))
                work.rename(final)
        for name in sorted(names, key=lambda name: name == _STARTS):  # last, as all is then here
            target = self._folder / name
            is_log = target.exists() and name.endswith(".log")
            if name == _STARTS or (_is_mirrored(name) and not is_log):
                self._download(name, target)
        size = sum(checkpoint.size(self._folder / save) for save in complete) / 1e6
        self._say(
            f"downloaded the run from {self._url}: {len(complete)} checkpoints and states, "
            f"{size:,.1f} MB, in {time.monotonic() - began:.1f} s"
        )

    def _download(self, name: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = target.with_name(f".{target.name}.part")
        self._store.get_file(self._path(name), str(work))
        self._uploaded[name] = _state(work)
        work.replace(target)

    # -- While the run trains

    def end(self) -> None:
        """Upload what is left, and say if that fails; wait for it at most `_LAST_SECONDS`."""
        self._ending.set()
        self._thread.join(_LAST_SECONDS)
        why = "it takes too long" if self._thread.is_alive() else self._failure
        if why:
            self._say(
                f"error: {self._url} lacks what this run wrote last ({why}): the same command with "
                f"--logdir={self._folder} uploads it"
            )

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._wait()
            try:
                self._upload(is_last)
                failure = ""
            except _NoLongerOurs as error:
                self._say(f"error: {error}")
                return
            except Exception as error:  # each store has exceptions of its own
                failure = describe_error(error)
            if failure and not (self._failure or is_last):
                self._say(
                    f"{self._url} cannot be written ({failure}); training continues, and it "
                    f"is tried again every {_PERIOD_SECONDS:.0f} s"
                )
            elif self._failure and not failure:
                self._say(f"{self._url} is written again")
            self._failure = failure

    def _wait(self) -> bool:
        """Wait until an upload is due; return whether it is the last. A new start is due at once.

        Otherwise a run that ends early leaves a start that the mirror does not know.
        """
        until = time.monotonic() + _PERIOD_SECONDS
        while not self._ending.wait(min(1.0, _PERIOD_SECONDS)) and time.monotonic() < until:
            if (starts := self._local_starts()) != self._seen:
                self._seen = starts
                break
        return self._ending.is_set()

    def _upload(self, is_last: bool) -> None:
        """Upload what has changed: starts and the run's saves first."""
        folder, starts = self._folder, self._local_starts()
        if not starts:  # this start may yet be refused, or the folder's disk may return
            return
        if not starts.startswith(self._starts):
            raise _NoLongerOurs(
                f"{folder} is another run's now: nothing more is written to {self._url}"
            )
        # Our own, if a write has succeeded and its answer was lost.
        if self._read(_STARTS) not in (self._starts, starts):
            raise _NoLongerOurs(
                f"another process has begun to write to {self._url}: this one writes to it no more"
            )
        if starts != self._starts:
            self._store.pipe_file(self._path(_STARTS), starts)
            self._starts = starts
        here = self._local_saves()
        for save in here:
            self._upload_save(save)
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if _is_mirrored(name) and path.is_file():
                self._upload_file(name, is_last)
        # Never the last ones, even if somebody has emptied the folder.
        if _has_checkpoint(here):
            for save in self._saves - set(here):
                self._delete_save(save)

    def _upload_save(self, save: str) -> None:
        """Upload a checkpoint or a learner's own state, or the description that has changed."""
        about, name = self._folder / save / _ABOUT, f"{save}/{_ABOUT}"
        try:
            state = _state(about)
            if self._uploaded.get(name) == state:
                return
            if name not in self._uploaded:
                self._saves.add(save)
                for path in sorted((self._folder / save).rglob("*")):
                    if path.is_file() and path != about:
                        file = path.relative_to(self._folder).as_posix()
                        self._store.put_file(str(path), self._path(file))
            self._store.put_file(str(about), self._path(name))
        except FileNotFoundError:
            if about.exists():
                raise
            return  # it was deleted meanwhile, since newer ones are kept
        self._uploaded[name] = state

    def _upload_file(self, name: str, is_last: bool) -> None:
        """Upload a file that has changed; a large one not each time."""
        state, (size, _) = _state(self._folder / name), self._uploaded.get(name, (0, 0))
        if state == self._uploaded.get(name):
            return
        if is_last or state[0] < _LARGE or state[0] > 1.01 * size:
            self._store.put_file(str(self._folder / name), self._path(name))
            self._uploaded[name] = state

    def _delete_save(self, save: str) -> None:
        for path in (f"{save}/{_ABOUT}", save):
            if self._store.exists(self._path(path)):
                self._store.rm(self._path(path), recursive=path == save)
        self._uploaded.pop(f"{save}/{_ABOUT}", None)
        self._saves.remove(save)

    def _local_saves(self) -> dict[str, Path]:
        """Return the saves here by name: learners' states, then checkpoints, which name those."""
        folders = [*sorted(self._folder.glob("own/*")), self._folder / "checkpoints"]
        found = [path for folder in folders for path in checkpoint.all_in(folder)]
        return {path.relative_to(self._folder).as_posix(): path for path in found}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _read(self, name: str) -> bytes:
        """Return a file of the mirror; b"" if there is none."""
        try:
            return bytes(self._store.cat_file(self._path(name)))
        except FileNotFoundError:
            return b""

    def _local_starts(self) -> bytes:
        return _content(self._folder / _STARTS)


def _content(path: Path) -> bytes:
    """Return a file's content; b"" if there is none."""
    return path.read_bytes() if path.exists() else b""


def _state(path: Path) -> _State:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _save_of(name: str) -> str:
    """Return the checkpoint, or a learner's own state, to which a file belongs; "" for others."""
    parts = PurePosixPath(name).parts
    depth = {"checkpoints": 2, "own": 3}.get(parts[0], 0)
    is_save = 0 < depth < len(parts) and parts[depth - 1].isdigit()
    return "/".join(parts[:depth]) if is_save else ""


def _has_checkpoint(saves: Iterable[str]) -> bool:
    return any(save.startswith("checkpoints/") for save in saves)


def _is_mirrored(name: str) -> bool:
    """Return whether a path in a run's folder is one that the mirror has, but of no save."""
    parts = PurePosixPath(name).parts
    is_hidden = any(part.startswith(".") or part.endswith(".part") for part in parts)
    return not (is_hidden or parts[0] in _LOCAL_ONLY | _IN_ORDER or _UNFINISHED & set(parts))
