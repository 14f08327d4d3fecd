"""Updates a copy of a folder on another machine, transferring only what the copy lacks.

For a file that has grown, only the new bytes are transferred. A file that was replaced is
transferred completely, under a temporary name. A file that was changed in the copy is moved aside,
never lost. `checkpoints` does the same for checkpoints, which are folders.

The host that offers files may have been taken over: no name or link of it may lead out of the
copy's folder.
"""

import dataclasses
import posixpath
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.hosts.remote_files import FileStore
from launcher.supervise.errors import join_names
from launcher.supervise.file_service import FOLDER, FileInfo
from launcher.supervise.json_files import from_json, read_json, write_json
from launcher.supervise.task import ROW_FILES

_COMPARE_ALL_BYTES = 1 << 20  # files up to this size are compared completely
# Bytes that are compared of a longer file that has grown, at its start and where the copy ends.
_SAMPLE_BYTES = 1 << 16
_MIRRORED_FILES = ("learners.log", *ROW_FILES)  # `state_mirror` writes these copies, too
SIZE, INODE, LINK = 0, 2, 3  # in `FileInfo`; LINK: the target of a link, empty for a file
_MOVE_ASIDE = "aside"


class OfferedFile(NamedTuple):
    """A file that the source offers."""

    path: str
    info: FileInfo


class FilePart(NamedTuple):
    """The part of a file that is to be transferred, from `offset` to the file's end."""

    name: str
    offer: OfferedFile
    offset: int
    target: str
    final_path: str  # the file's name once it is complete; equal to `target` if bytes are appended
    old_path: str = ""  # new name of the file that `final_path` replaces; empty: it is overwritten

    @property
    def size(self) -> int:
        """The number of bytes to transfer."""
        return self.offer.info[SIZE] - self.offset


@dataclasses.dataclass
class TransferResult:
    """The amount of data that was transferred, and what could not be."""

    bytes: int = 0
    files: int = 0
    checkpoints: int = 0
    changed: list[str] = dataclasses.field(default_factory=list)  # files changed while being read
    errors: list[str] = dataclasses.field(default_factory=list)  # messages


@dataclasses.dataclass
class TransferState:
    """The origin and version of every file in a copy, stored in the copy between transfers.

    Files that have not changed since need no comparison.
    """

    # By name, [origin (the host that has offered it), FileInfo there, FileInfo in the copy]; None
    # during a transfer.
    files: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    coming: dict[str, str] = dataclasses.field(default_factory=dict)  # incomplete: their origin
    # Checkpoints by name, with the SHA-256 of their about.json: downloaded, damaged at source.
    checkpoints: dict[str, str] = dataclasses.field(default_factory=dict)
    damaged: dict[str, str] = dataclasses.field(default_factory=dict)
    _path: Path | None = None  # None: it is not stored
    _writing: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @classmethod
    def read(cls, path: Path) -> "TransferState":
        """Read the state of the last transfer; without one, everything is compared."""
        return dataclasses.replace(from_json(cls, read_json(path)) or cls(), _path=path)

    def save(self) -> None:
        """Write the state to its file for the next transfer."""
        with self._writing:
            if self._path:
                names = ("files", "coming", "checkpoints", "damaged")
                write_json(self._path, {name: getattr(self, name).copy() for name in names})


class FolderCopy:
    """A copy of a folder that is to be updated, and the result so far."""

    def __init__(
        self,
        source: FileStore,
        origin: str,
        store: FileStore,
        folder: str,
        state: TransferState,
        on_progress: Callable[[int, int], None] | None = None,
    ):
        """Prepare the update of `folder` in `store` from files of `source`, the host `origin`.

        `on_progress` is called with the number of bytes that were added to the total, and the
        number that were transferred.
        """
        self.source, self.origin = source, origin
        self.store, self.folder, self.state = store, folder, state
        self.result = TransferResult()
        self._on_progress = on_progress or (lambda added, transferred: None)

    def path(self, name: str) -> str:
        """Return the path of a file in the copy."""
        return posixpath.join(self.folder, name)

    def accept(self, offers: Mapping[str, OfferedFile]) -> dict[str, OfferedFile]:
        """Return the offers that stay within the folder; the result's errors name the others.

        Copied links that have become folders at the source are removed first. Raises
        HostUnavailable, OperationFailed, OSError.
        """
        safe = safe_offers(offers)
        self._remove_links_above(safe)
        places = {name: self._places(name, offer) for name, offer in safe.items()}
        out = set(self.store.leading_out(self.folder, sorted(set().union(*places.values()))))
        inside = {name: offer for name, offer in safe.items() if out.isdisjoint(places[name])}
        for refused, why in (
            (offers.keys() - safe, "no run has such names and links: find out who uses that host"),
            (
                safe.keys() - inside,
                f"a link in {self.folder} leads out of it: make it a folder, or link the whole "
                f"folder",
            ),
        ):
            message = f"{join_names(sorted(refused))} not copied, since {why}"
            if refused and message not in self.result.errors:
                self.result.errors.append(message)
        return inside

    def _places(self, name: str, offer: OfferedFile) -> set[str]:
        """Return the paths that must be in the folder: the file's own folder, a link's target."""
        parent, link = posixpath.dirname(self.path(name)), offer.info[LINK]
        return {parent, posixpath.join(parent, link)} if link else {parent}

    def copy_files(self, offers: Mapping[str, OfferedFile]) -> None:
        """Copy accepted files that are missing or differ; after a failure the next call continues.

        Raises HostUnavailable, OperationFailed, OSError.
        """
        known_files = self.state.files
        present = self._local_infos(offers)
        new = {
            name: offer
            for name, offer in offers.items()
            if known_files.get(name) != [self.origin, offer.info, present[name] or ""]
        }
        self._make_links({n: o for n, o in new.items() if o.info[LINK]})
        new = {name: offer for name, offer in new.items() if not offer.info[LINK]}
        partial = self._local_infos(new, partial_path)
        matching = self._compare(new, present, partial, offers)
        actions = {
            name: self._choose_action(name, offer, present[name], (name, "") in matching)
            for name, offer in new.items()
        }
        self._rename_rotated_logs(new, present, matching, actions)
        parts = self._plan_parts(offers, present, partial, matching, actions)
        for name, action in actions.items():
            known_files[name] = [self.origin, None, None]
            if action == "keep":
                del known_files[name]
        replacing = [part.name for part in parts if part.target != part.final_path]
        self.state.coming |= dict.fromkeys(replacing, self.origin)
        self.state.save()
        try:
            changed = self.transfer_parts(parts)
        finally:
            self.state.save()
        self.result.files += len(parts) - len(changed)
        self.result.changed += changed
        for name, info in self._local_infos(new).items():
            if name in known_files and name not in changed:
                known_files[name] = [self.origin, new[name].info, info]
        self.state.save()

    def transfer_parts(self, parts: Sequence[FilePart]) -> list[str]:
        """Transfer the parts in this order, and give completed files their final names.

        Return the names of the files that were changed while they were read.
        """
        changed = []
        self._on_progress(sum(part.size for part in parts), 0)
        read = [[p.offer.path, p.offer.info[INODE], p.offset, p.size] for p in parts]
        chunks = self.source.read(read)
        for part in parts:
            if not self._transfer_part(part, chunks):
                changed.append(part.name)
            elif part.target != part.final_path:
                if part.old_path == _MOVE_ASIDE:
                    self.store.move_aside(part.final_path)
                elif part.old_path:
                    self.store.rename(part.final_path, part.old_path)
                self.store.rename(part.target, part.final_path)
                self.state.coming.pop(part.name, None)
        return changed

    def _transfer_part(self, part: FilePart, chunks: Iterator[bytes]) -> bool:
        """Transfer one part; return whether all of its bytes were received."""
        count = 0

        def count_chunks() -> Iterator[bytes]:
            nonlocal count
            while chunk := next(chunks, b""):
                count += len(chunk)
                self.result.bytes += len(chunk)
                self._on_progress(0, len(chunk))
                yield chunk
            yield b""

        counted = count_chunks()
        try:
            self.store.write([[part.target, part.offset]], counted)
        except FileNotFoundError:  # the copy's file was renamed at the same time
            for _ in counted:
                pass
            return False
        return count >= part.size

    def remove_stale_partials(self, offered: Container[str]) -> None:
        """Remove incomplete files that the origin does not offer any more."""
        for name, whose in list(self.state.coming.items()):
            if whose == self.origin and name not in offered:
                self.store.remove(partial_path(self.path(name)))
                del self.state.coming[name]

    def _local_infos(
        self, names: Iterable[str], path_of: Callable[[str], str] = str
    ) -> dict[str, FileInfo | None]:
        names = list(names)
        return dict(
            zip(names, self.store.file_infos([path_of(self.path(n)) for n in names]), strict=True)
        )

    def _remove_links_above(self, names: Iterable[str]) -> None:
        """Remove copied links that have become folders at the source, above the named files."""
        above = {folder for name in names for folder in folders_above(name)}
        for name in sorted(above & set(self.state.files)):  # a link before what is below it
            info = self.state.files[name][2]
            if info and info[LINK] not in ("", FOLDER):
                self.store.remove(self.path(name))
                del self.state.files[name]

    def _make_links(self, links: Mapping[str, OfferedFile]) -> None:
        for name, offer in links.items():
            self.store.make_link(self.path(name), offer.info[LINK])
        for name, info in self._local_infos(links).items():
            self.state.files[name] = [self.origin, links[name].info, info]

    def _compare(
        self,
        offers: Mapping[str, OfferedFile],
        present: Mapping[str, FileInfo | None],
        partial: Mapping[str, FileInfo | None],
        offered: Mapping[str, OfferedFile],
    ) -> set[tuple[str, str]]:
        """Compare copies with the offered files, each over the length of the copy.

        Return the matches: (name, "") for the file itself, (name, "partial") for its incomplete
        copy, and (name, "1") for a log that equals the source's rotated log NAME.log.1.
        """
        comparisons: dict[tuple[str, str], tuple[Any, Any]] = {}
        for name, offer in offers.items():
            path, info, begun = self.path(name), present[name], partial[name]
            if begun and begun[SIZE] <= offer.info[SIZE]:
                comparisons[name, "partial"] = _comparison(offer, partial_path(path), begun[SIZE])
            if info is None or info[LINK]:
                continue
            comparisons[name, ""] = _comparison(offer, path, info[SIZE])
            one = offered.get(f"{name}.1") if name.endswith(".log") else None
            if one and one.info[SIZE] >= info[SIZE] > 0:
                comparisons[name, "1"] = _comparison(one, path, info[SIZE])
        remote_digests = self.source.digests([pair[0] for pair in comparisons.values()])
        local_digests = self.store.digests([pair[1] for pair in comparisons.values()])
        return {
            key
            for key, a, b in zip(comparisons, remote_digests, local_digests, strict=True)
            if a == b != ""
        }

    def _choose_action(
        self, name: str, offer: OfferedFile, present: FileInfo | None, matches: bool
    ) -> str:
        known = self.state.files.get(name)
        is_unchanged = known is not None and known[2] in (None, present)
        return choose_action(name, offer.info, present, is_unchanged, matches)

    def _rename_rotated_logs(
        self,
        new: Mapping[str, OfferedFile],
        present: dict[str, FileInfo | None],
        matching: set[tuple[str, str]],
        actions: dict[str, str],
    ) -> None:
        """Rename the copies of logs that were rotated at the source to NAME.log.1, too."""
        for name in [n for n in new if (n, "1") in matching and actions[n] in ("replace", "aside")]:
            rotated = f"{name}.1"
            self.store.rename(self.path(name), self.path(rotated))
            present[rotated], present[name] = present[name], None
            actions[name], actions[rotated] = "replace", "append"

    def _plan_parts(
        self,
        offers: Mapping[str, OfferedFile],
        present: Mapping[str, FileInfo | None],
        partial: Mapping[str, FileInfo | None],
        matching: set[tuple[str, str]],
        actions: Mapping[str, str],
    ) -> list[FilePart]:
        parts = []
        for name, action in actions.items():
            offer, path, info = offers[name], self.path(name), present[name]
            replaces, begun = action in ("replace", "aside"), partial.get(name)
            if begun and not (replaces and (name, "partial") in matching):
                self.store.remove(partial_path(path))
                begun = None
            if action == "append" and info:
                parts.append(FilePart(name, offer, info[SIZE], path, path))
            if not replaces:
                continue
            old_path = ""
            if action == "aside":
                log = name.endswith(".log")
                old_path = ("" if f"{name}.1" in offers else f"{path}.1") if log else _MOVE_ASIDE
            offset = begun[SIZE] if begun else 0
            parts.append(FilePart(name, offer, offset, partial_path(path), path, old_path))
        # Appended parts, such as logs, are short and come first.
        return sorted(parts, key=lambda part: (part.target != part.final_path, part.size))


def safe_offers(offers: Mapping[str, OfferedFile]) -> dict[str, OfferedFile]:
    """Return the offers with a safe name and link that are not below an offered link.

    A walk through a folder lists nothing below a link that it lists. A file below one would be
    written where the link leads, whatever its name says.
    """
    links = {name for name, offer in offers.items() if offer.info[LINK]}
    return {
        name: offer
        for name, offer in offers.items()
        if is_safe(name, offer) and links.isdisjoint(folders_above(name))
    }


def is_safe(name: str, offer: OfferedFile) -> bool:
    """Return whether a file's name and link stay within the folder, and no part is hidden.

    A link must be written without detours: a `..` behind a name leads elsewhere if that name is a
    link, too.
    """
    paths, link = [name], offer.info[LINK]
    if link:
        if posixpath.normpath(link) != link:
            return False
        paths.append(posixpath.normpath(posixpath.join(posixpath.dirname(name), link)))
    return all(part and part[0] != "." for path in paths for part in path.split("/"))


def folders_above(name: str) -> set[str]:
    """Return the names of the folders above a file within the run's folder."""
    return {name[:i] for i, letter in enumerate(name) if letter == "/"}


def choose_action(
    name: str, offered: FileInfo, present: FileInfo | None, is_unchanged: bool, matches: bool
) -> str:
    """Choose how to update a file: "nothing", "keep", "append", "replace" or "aside".

    "replace" transfers all of it, "aside" also moves the copy aside first, and "keep" keeps a copy
    that differs. `is_unchanged`: the copy was not changed since its last transfer. `matches`: both
    files are equal over the length of the shorter.
    """
    if present is None or present[LINK]:
        return "replace"
    more = offered[SIZE] - present[SIZE]
    if matches and more >= 0:
        return "append" if more else "nothing"
    # No user has written to NAME.log.1; only `state_mirror` may have, if it writes NAME.log.
    is_unchanged |= name.endswith(".log.1") and name.removesuffix(".1") not in _MIRRORED_FILES
    if matches and (name in _MIRRORED_FILES or not is_unchanged):  # the copy is longer
        return "keep"
    if name.endswith(".log"):
        return "aside"
    return "replace" if is_unchanged or name.endswith(".log.1") else "aside"


def partial_path(path: str) -> str:
    """Return the hidden name of a file or checkpoint that is not complete yet."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.coming")


def list_offers(source: FileStore, folder: str) -> dict[str, OfferedFile]:
    """Return the files of a run's folder on the source's machine, by name."""
    return {
        name: OfferedFile(f"{folder}/{name}", info)
        for name, info in source.list_files(folder).items()
    }


def _comparison(offer: OfferedFile, path: str, size: int) -> tuple[Any, Any]:
    """Return the requests of both files' digests over equal ranges; `size` is the copy's."""
    common = min(size, offer.info[SIZE])
    spans = [[0, common]]
    if common > _COMPARE_ALL_BYTES and offer.info[SIZE] > size:
        spans = [[0, _SAMPLE_BYTES], [common - _SAMPLE_BYTES, _SAMPLE_BYTES]]
    return [offer.path, spans], [path, spans]
