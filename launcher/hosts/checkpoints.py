"""Copies checkpoints from one machine to a copy of the run's folder, each completely or not at all.

    checkpoints/0000012000/about.json   describes the checkpoint; size and SHA-256 of each file

`impala_mm.records` writes them. A checkpoint is downloaded under a hidden name, and renamed once
every file matches its about.json. When the learners remove an old checkpoint, its copy is removed
too if it was downloaded, but never the best one or a milestone.
"""

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.hosts.copy import (
    INODE,
    LINK,
    SIZE,
    FilePart,
    FolderCopy,
    OfferedFile,
    list_offers,
    partial_path,
)
from launcher.hosts.remote_files import FileStore
from launcher.supervise.json_files import from_json, parse_object, read_json

_CHECKPOINTS = "checkpoints"
# Begins the name of an empty file beside checkpoints that took the place of all that a run had.
TAKEN = "taken-"
_ABOUT_FILE = "about.json"
_MAX_BYTES = 1 << 24  # maximum bytes of an about.json


class CheckpointInfo(NamedTuple):
    """The part of an about.json that a copy of its checkpoint needs."""

    files: dict[str, tuple[int, str]]  # by name: bytes, SHA-256
    episode_return: float | None = None
    milestone: bool = False

    @property
    def mean_return(self) -> float:
        """The mean return; minus infinity if it is not known."""
        return -math.inf if self.episode_return is None else self.episode_return


def split_offers(
    offers: Mapping[str, OfferedFile],
) -> tuple[dict[str, OfferedFile], dict[str, dict[str, OfferedFile]]]:
    """Split offered files into those of no checkpoint, and those of each complete checkpoint."""
    files: dict[str, OfferedFile] = {}
    by_checkpoint: dict[str, dict[str, OfferedFile]] = {}
    for name, offer in offers.items():
        found = re.fullmatch(rf"{_CHECKPOINTS}/(\d+)/([^/.][^/]*)", name)
        if found:
            by_checkpoint.setdefault(found[1], {})[found[2]] = offer
        elif not re.match(rf"{_CHECKPOINTS}/\d+/", name):
            files[name] = offer
    complete = {name: parts for name, parts in by_checkpoint.items() if _ABOUT_FILE in parts}
    return files, complete


def checkpoint_path(name: str) -> str:
    """Return a checkpoint's path within its run's folder."""
    return f"{_CHECKPOINTS}/{name}"


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run's folder holds a complete checkpoint; one under a hidden name is not."""
    return any((folder / _CHECKPOINTS).glob(f"[0-9]*/{_ABOUT_FILE}"))


def newest_checkpoint(store: FileStore, folder: str) -> int:
    """Return the number of the newest complete checkpoint of a run's folder; -1 without one."""
    _, complete = split_offers(list_offers(store, folder))
    return max(map(int, complete), default=-1)


def are_taken(store: FileStore, folder: str, local_folder: Path) -> bool:
    """Return whether the copy of a run's folder here has checkpoints of another run in its place.

    Those in `folder` are then the run's former ones.
    """
    marks = {f"{_CHECKPOINTS}/{p.name}" for p in (local_folder / _CHECKPOINTS).glob(f"{TAKEN}*")}
    return bool(marks - store.list_files(folder).keys())


def find_superfluous(
    kept: Mapping[str, CheckpointInfo], remote_names: Collection[str], transferred: Collection[str]
) -> list[str]:
    """Return downloaded checkpoints that the learners have removed and that need not be kept.

    The best, the milestones, and those newer than the newest common checkpoint are kept.
    """
    best = max(kept, key=lambda name: (kept[name].mean_return, name), default="")
    newest = max((name for name in remote_names if name in kept), default="")
    return [
        name
        for name, info in kept.items()
        if name in transferred and name not in remote_names and name < newest
        if name != best and not info.milestone
    ]


def prune_checkpoints(copy: FolderCopy, remote_names: Collection[str]) -> None:
    """Remove superfluous checkpoints (see `find_superfluous`) from a copy on this machine."""
    folder = Path(copy.folder) / _CHECKPOINTS
    infos = {
        path.parent.name: from_json(CheckpointInfo, read_json(path))
        for path in folder.glob(f"[0-9]*/{_ABOUT_FILE}")
    }
    complete = {name: saved for name, saved in infos.items() if saved and name.isdigit()}
    for name in find_superfluous(complete, remote_names, copy.state.checkpoints):
        copy.store.remove(_set_aside(copy, name))
        del copy.state.checkpoints[name]


def _set_aside(copy: FolderCopy, name: str) -> str:
    """Rename a checkpoint of a copy, so that no process sees a part of it; return its path."""
    gone = copy.path(checkpoint_path(f".{name}.gone"))
    copy.store.remove(gone)  # left by a removal that was interrupted
    copy.store.rename(copy.path(checkpoint_path(name)), gone)
    return gone


def copy_checkpoints(copy: FolderCopy, offered: Mapping[str, dict[str, OfferedFile]]) -> None:
    """Copy checkpoints, the newest first; after a failure the next call continues the transfer.

    Raises HostUnavailable, OperationFailed, OSError.
    """
    names = sorted(offered, reverse=True)
    abouts = [offered[name][_ABOUT_FILE] for name in names]
    copies = [copy.path(f"{checkpoint_path(name)}/{_ABOUT_FILE}") for name in names]
    spans = [[[0, min(about.info[SIZE], _MAX_BYTES)]] for about in abouts]
    remote_digests = copy.source.digests([[a.path, s] for a, s in zip(abouts, spans, strict=True)])
    local_digests = copy.store.digests([[p, s] for p, s in zip(copies, spans, strict=True)])
    try:
        for name, sha, local_digest in zip(names, remote_digests, local_digests, strict=True):
            if sha not in ("", local_digest, copy.state.damaged.get(name)):
                _CheckpointCopy(copy, name, sha).copy(offered[name])
    finally:
        copy.state.save()


class _CheckpointCopy:
    """The transfer of one checkpoint."""

    def __init__(self, copy: FolderCopy, name: str, sha: str):
        """Prepare the transfer; `sha` is the SHA-256 of the checkpoint's about.json."""
        self._copy, self._name, self._sha = copy, name, sha
        self._path = checkpoint_path(name)
        self._target = copy.path(self._path)
        self._partial = partial_path(self._target)
        copy.state.coming[self._path] = copy.origin

    def copy(self, offers: dict[str, OfferedFile]) -> None:
        """Copy the checkpoint if it is complete at the source."""
        state, result = self._copy.state, self._copy.result
        path, about = offers[_ABOUT_FILE]
        read = [path, about[INODE], 0, min(about[SIZE], _MAX_BYTES)]
        content = b"".join(self._copy.source.read([read]))
        info = from_json(CheckpointInfo, parse_object(content))
        if info is None or not _is_complete(info, offers):  # perhaps it is being removed
            result.changed.append(self._path)
            return
        parts = self._missing_parts(info, offers, content)
        if self._copy.transfer_parts(parts):
            result.changed.append(self._path)
        elif wrong := self._find_damaged_file(info):
            self._copy.store.remove(self._partial)
            # The partial files seem to belong to another checkpoint: start over.
            if any(part.offset for part in parts):
                result.changed.append(self._path)
                return
            state.damaged[self._name] = self._sha
            result.errors.append(
                f"checkpoint {self._name} is damaged and was not copied: the checksum of {wrong} "
                f"is wrong"
            )
        else:
            self._replace_target()
            state.checkpoints[self._name] = self._sha
            state.damaged.pop(self._name, None)
            result.checkpoints += 1

    def _missing_parts(
        self, info: CheckpointInfo, offers: dict[str, OfferedFile], content: bytes
    ) -> list[FilePart]:
        """Return the parts of each file that are still missing in the partial copy."""
        store = self._copy.store
        about = f"{self._partial}/{_ABOUT_FILE}"
        if store.digests([[about, [[0, len(content)]]]]) != [self._sha]:
            store.remove(self._partial)
            store.write([[about, 0]], iter([content, b""]))
        paths = [f"{self._partial}/{file}" for file in info.files]
        parts = []
        for file, path, partial in zip(info.files, paths, store.file_infos(paths), strict=True):
            size = info.files[file][0]
            offset = partial[SIZE] if partial and partial[SIZE] <= size else 0
            if partial and partial[SIZE] > size:
                store.remove(path)
            if partial is None or offset < size:
                parts.append(FilePart(file, offers[file], offset, path, path))
        return parts

    def _find_damaged_file(self, info: CheckpointInfo) -> str:
        """Return the first file whose SHA-256 is wrong; empty if all are right."""
        parts = [[f"{self._partial}/{file}", [[0, size]]] for file, (size, _) in info.files.items()]
        found = self._copy.store.digests(parts)
        pairs = zip(info.files.items(), found, strict=True)
        return next((file for (file, (_, sha)), digest in pairs if digest != sha), "")

    def _replace_target(self) -> None:
        """Rename the complete copy to its final name, replacing an earlier download of that name.

        A folder of that name that was not downloaded is moved aside.
        """
        copy, gone = self._copy, ""
        if self._name in copy.state.checkpoints and copy.store.file_infos([self._target])[0]:
            gone = _set_aside(copy, self._name)
        copy.store.rename(self._partial, self._target)
        if gone:
            copy.store.remove(gone)
        copy.state.coming.pop(self._path, None)


def _is_complete(info: CheckpointInfo, offers: Mapping[str, OfferedFile]) -> bool:
    """Return whether every file of a checkpoint is offered, with the right size."""
    return all(
        file in offers and not offers[file].info[LINK] and offers[file].info[SIZE] == size
        for file, (size, _) in info.files.items()
    )
