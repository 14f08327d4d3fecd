"""Checkpoints brought from one machine to a copy of the run's folder: whole or not at all.

    checkpoints/0000012000/about.json   what it says of itself, and size and SHA-256 of each file

`impala_mm.records` writes them. One comes under a hidden name and gets its own when every file
is what its about.json says. The learners remove old ones by and by; then so does the copy, of those
that it brought, and never the best or a milestone.
"""

import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher.node.task import read_json
from launcher.remote.remote_files import FileStore
from launcher.transfer.copy import FilePart, FolderCopy, OfferedFile, TransferResult, partial_path

_CHECKPOINTS = "checkpoints"
_ABOUT_FILE = "about.json"
_MAX_BYTES = 1 << 24  # bytes of an about.json


class CheckpointInfo(NamedTuple):
    """What a checkpoint says of itself."""

    files: dict[str, list[Any]]  # bytes and SHA-256 of each
    mean_return: float  # the mean return; minus infinity where it is not known
    milestone: bool


def split_offers(
    offers: Mapping[str, OfferedFile],
) -> tuple[dict[str, OfferedFile], dict[str, dict[str, OfferedFile]]]:
    """Files of no checkpoint, and those of each, by its name and theirs."""
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
    """Of one, in its run's folder."""
    return f"{_CHECKPOINTS}/{name}"


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run's folder holds a complete checkpoint; one under a hidden name is not."""
    return any((folder / _CHECKPOINTS).glob(f"[0-9]*/{_ABOUT_FILE}"))


def parse_about(content: Any) -> CheckpointInfo | None:
    """By its about.json; None where that is something else."""
    try:
        merit = content["episode_return"]
        return CheckpointInfo(
            files={str(n): [int(size), str(sha)] for n, (size, sha) in content["files"].items()},
            mean_return=-math.inf if merit is None else float(merit),
            milestone=bool(content.get("milestone")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def find_superfluous(
    kept: Mapping[str, CheckpointInfo], remote_names: Collection[str], transferred: Collection[str]
) -> list[str]:
    """Of those here, what the other end does not keep any more, and nobody may miss."""
    best = max(kept, key=lambda name: (kept[name].mean_return, name), default="")
    newest = max((name for name in remote_names if name in kept), default="")
    return [
        name
        for name, info in kept.items()
        if name in transferred and name not in remote_names and name < newest
        if name != best and not info.milestone
    ]


def prune_checkpoints(
    copy: FolderCopy, remote_names: Collection[str], result: TransferResult
) -> None:
    """What is superfluous (`find_superfluous`) in a copy on this machine."""
    folder = Path(copy.folder) / _CHECKPOINTS
    infos = {
        path.parent.name: parse_about(read_json(path))
        for path in folder.glob(f"[0-9]*/{_ABOUT_FILE}")
    }
    complete = {name: saved for name, saved in infos.items() if saved and name.isdigit()}
    for name in find_superfluous(complete, remote_names, copy.state.checkpoints):
        gone = folder / f".{name}.gone"
        copy.store.rename(str(folder / name), str(gone))  # nobody sees half of it
        copy.store.remove(str(gone))
        del copy.state.checkpoints[name]
        result.removed.append(name)


def copy_checkpoints(
    copy: FolderCopy,
    source: FileStore,
    origin: str,
    offered: Mapping[str, dict[str, OfferedFile]],
    result: TransferResult,
) -> None:
    """Copies them, the newest first; a later call continues with what came until then.

    Raises HostUnavailable, OperationFailed, OSError.
    """
    names = sorted(offered, reverse=True)
    remote_digests = source.digests([_digest_request(offered[name][_ABOUT_FILE]) for name in names])
    final = [copy.path(f"{_CHECKPOINTS}/{name}/{_ABOUT_FILE}") for name in names]
    sizes = [about[0] if about else 0 for about in copy.store.file_infos(final)]
    local_digests = copy.store.digests(
        [[p, [[0, size]]] for p, size in zip(final, sizes, strict=True)]
    )
    try:
        for name, sha, local_digest in zip(names, remote_digests, local_digests, strict=True):
            if sha not in ("", local_digest, copy.state.damaged.get(name)):
                _CheckpointCopy(copy, source, origin, name, sha).copy(offered[name], result)
    finally:
        copy.state.save()


class _CheckpointCopy:
    """The transfer of one checkpoint."""

    def __init__(self, copy: FolderCopy, source: FileStore, origin: str, name: str, sha: str):
        """`sha`: of its about.json, which says all of it."""
        self._copy, self._source, self._name, self._sha = copy, source, name, sha
        self._target = copy.path(f"{_CHECKPOINTS}/{name}")
        self._partial = partial_path(self._target)
        copy.state.partial[f"{_CHECKPOINTS}/{name}"] = origin

    def copy(self, offers: dict[str, OfferedFile], result: TransferResult) -> None:
        """If it is as whole there as it says."""
        state = self._copy.state
        content = b"".join(self._source.read([_read_request(offers[_ABOUT_FILE])]))
        info = parse_about(_parse_json(content))
        if info is None or not _is_complete(info, offers):  # it is being removed, perhaps
            result.changed.append(f"{_CHECKPOINTS}/{self._name}")
            return
        parts = self._missing_parts(info, offers, content)
        transferred = TransferResult()
        try:
            self._copy.transfer_parts(self._source, parts, transferred)
        finally:
            result.bytes += transferred.bytes
        if transferred.changed:
            result.changed.append(f"{_CHECKPOINTS}/{self._name}")
        elif wrong := self._find_damaged_file(info):
            self._copy.store.remove(self._partial)
            # The parts were of another one, it seems: again, from the beginning.
            if any(part.offset for part in parts):
                result.changed.append(f"{_CHECKPOINTS}/{self._name}")
                return
            state.damaged[self._name] = self._sha
            result.errors.append(
                f"checkpoint {self._name} is damaged there ({wrong} is not what was written)"
            )
        else:
            self._replace_target()
            state.checkpoints[self._name] = self._sha
            state.damaged.pop(self._name, None)
            result.checkpoints += 1

    def _missing_parts(
        self, info: CheckpointInfo, offers: dict[str, OfferedFile], content: bytes
    ) -> list[FilePart]:
        """What is not here yet of each file."""
        store = self._copy.store
        about = f"{self._partial}/{_ABOUT_FILE}"
        if store.digests([[about, [[0, len(content)]]]]) != [self._sha]:
            store.remove(self._partial)
            store.write(about, 0, [content])
        paths = [f"{self._partial}/{file}" for file in info.files]
        parts = []
        for file, path, partial in zip(info.files, paths, store.file_infos(paths), strict=True):
            size = info.files[file][0]
            offset = partial[0] if partial and partial[0] <= size else 0
            if partial and partial[0] > size:
                store.remove(path)
            if partial is None or offset < size:
                parts.append(FilePart(file, offers[file], offset, path, path))
        return parts

    def _find_damaged_file(self, info: CheckpointInfo) -> str:
        """The first file that is not what it should be."""
        parts = [[f"{self._partial}/{file}", [[0, size]]] for file, (size, _) in info.files.items()]
        found = self._copy.store.digests(parts)
        pairs = zip(info.files.items(), found, strict=True)
        return next((file for (file, (_, sha)), digest in pairs if digest != sha), "")

    def _replace_target(self) -> None:
        """One of the same number that came before goes; one that did not is put aside."""
        store, before = self._copy.store, f"{_CHECKPOINTS}/.{self._name}.gone"
        replaced = (
            self._copy.state.checkpoints.get(self._name) and store.file_infos([self._target])[0]
        )
        if replaced:
            store.remove(self._copy.path(before))
            store.rename(self._target, self._copy.path(before))
        store.rename(self._partial, self._target)
        if replaced:
            store.remove(self._copy.path(before))
        self._copy.state.partial.pop(f"{_CHECKPOINTS}/{self._name}", None)


def _is_complete(info: CheckpointInfo, offers: Mapping[str, OfferedFile]) -> bool:
    """Whether every file is there, and as long as it should be."""
    return all(
        file in offers and not offers[file].info[3] and offers[file].info[0] == size
        for file, (size, _) in info.files.items()
    )


def _digest_request(offer: OfferedFile) -> list[Any]:
    """For `digests`."""
    return [offer.path, [[0, min(offer.info[0], _MAX_BYTES)]]]


def _read_request(offer: OfferedFile) -> list[Any]:
    """For `read`."""
    return [offer.path, offer.info[2], 0, min(offer.info[0], _MAX_BYTES)]


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
