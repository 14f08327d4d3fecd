"""Files of a folder on one machine brought to a copy of it on another: only what it lacks.

What grew goes on from where the copy ends; what was replaced comes whole, under a name of its own
until it is. What is different in the copy because somebody changed the copy is put aside, never
lost. `checkpoints` does the same for checkpoints, which are whole folders.
"""

import dataclasses
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.node.file_service import FOLDER, FileInfo
from launcher.node.task import read_json, write_json
from launcher.remote.remote_files import FileStore

_COMPARE_WHOLE_BYTES = 1 << 20  # bytes of a file that are compared whole
# Of a longer one that has grown: so many at its begin, and where the copy ends.
_SAMPLE_BYTES = 1 << 16
# Others write to their copies, too (`state_mirror`).
_MIRRORED_FILES = ("learners.log", "metrics.jsonl")
_SIZE, _INODE, _LINK = 0, 2, 3  # in `FileInfo`
_MOVE_ASIDE = "aside"


class OfferedFile(NamedTuple):
    """A file that is to be had."""

    path: str
    info: FileInfo


class FilePart(NamedTuple):
    """Of a file, to be read at one end and written at the other."""

    name: str
    offer: OfferedFile
    offset: int
    target: str
    final_path: str  # its name once it is whole; the same where it only grows
    old_path: str = ""  # where what had that name goes; empty: nowhere

    @property
    def size(self) -> int:
        """Bytes."""
        return self.offer.info[_SIZE] - self.offset


@dataclasses.dataclass
class TransferResult:
    """How much was transferred, and what was not."""

    bytes: int = 0
    files: int = 0
    checkpoints: int = 0
    removed: list[str] = dataclasses.field(default_factory=list)
    changed: list[str] = dataclasses.field(default_factory=list)  # they changed meanwhile
    errors: list[str] = dataclasses.field(default_factory=list)  # sentences


class TransferState:
    """What a copy had from where, when it was last brought; kept in it, to be asked no more.

    `files`: by name, [origin, FileInfo there, FileInfo here]; both None during a transfer.
    """

    def __init__(self, path: Path | None = None):
        content = read_json(path) if path else {}
        self._path, self._writing = path, threading.Lock()
        self.files: dict[str, list[Any]] = content.get("files", {})
        self.partial: dict[str, str] = content.get("coming", {})  # begun; from which origin
        self.checkpoints: dict[str, str] = content.get("checkpoints", {})  # names: what they are
        self.damaged: dict[str, str] = content.get("damaged", {})  # there

    def save(self) -> None:
        """For the next."""
        with self._writing:
            if self._path:
                content = {
                    "files": self.files.copy(),
                    "coming": self.partial.copy(),
                    "checkpoints": self.checkpoints.copy(),
                    "damaged": self.damaged.copy(),
                }
                write_json(self._path, content)


class FolderCopy:
    """A folder at one end that is to have what others offer."""

    def __init__(
        self,
        store: FileStore,
        folder: str,
        state: TransferState,
        on_progress: Callable[[int, int], None] | None = None,
    ):
        """`on_progress`: is called with how many more bytes are to come, and how many came."""
        self.store, self.folder, self.state = store, folder, state
        self._on_progress = on_progress or (lambda more, came: None)

    def path(self, name: str) -> str:
        """Of a file of it."""
        return posixpath.join(self.folder, name)

    def copy_files(
        self,
        source: FileStore,
        origin: str,
        offers: Mapping[str, OfferedFile],
        result: TransferResult,
    ) -> None:
        """Copies what is missing; a later call continues with what came until then.

        Raises HostUnavailable, OperationFailed, OSError.
        """
        known_files = self.state.files
        offers = {name: offer for name, offer in offers.items() if is_safe(name, offer)}
        self._remove_links_above(offers)
        present = self._local_infos(offers)
        new = {
            name: offer
            for name, offer in offers.items()
            if known_files.get(name) != [origin, offer.info, present[name] or ""]
        }
        self._make_links(origin, {n: o for n, o in new.items() if o.info[_LINK]}, present)
        new = {name: offer for name, offer in new.items() if not offer.info[_LINK]}
        partial = self._local_infos(new, partial_path)
        matching = self._compare(source, new, present, partial, offers)
        actions = self._choose_actions(new, present, matching)
        self._rename_rotated_logs(new, present, matching, actions)
        parts = self._plan_parts(offers, present, partial, matching, actions)
        for name, action in actions.items():
            known_files[name] = [origin, None, None]
            if action == "keep":
                del known_files[name]
        self.state.partial |= {
            part.name: origin for part in parts if part.target != part.final_path
        }
        self.state.save()
        try:
            self.transfer_parts(source, parts, result)
        finally:
            self.state.save()
        for name, info in self._local_infos(new).items():
            if name in known_files and name not in result.changed:
                known_files[name] = [origin, new[name].info, info]
        self.state.save()

    def transfer_parts(
        self, source: FileStore, parts: Sequence[FilePart], result: TransferResult
    ) -> None:
        """As they are planned, in this order."""
        self._on_progress(sum(part.size for part in parts), 0)
        read = [[p.offer.path, p.offer.info[_INODE], p.offset, p.size] for p in parts]
        chunks = source.read(read)
        for part in parts:
            if not self._transfer_part(part, chunks, result):
                result.changed.append(part.name)
                continue
            result.files += 1
            if part.target != part.final_path:
                if part.old_path == _MOVE_ASIDE:
                    self.store.move_aside(part.final_path)
                elif part.old_path:
                    self.store.rename(part.final_path, part.old_path)
                self.store.rename(part.target, part.final_path)
                self.state.partial.pop(part.name, None)

    def _transfer_part(
        self, part: FilePart, chunks: Iterator[bytes], result: TransferResult
    ) -> bool:
        """Whether all of its bytes came."""
        count = 0

        def count_chunks() -> Iterator[bytes]:
            nonlocal count
            while chunk := next(chunks, b""):
                count += len(chunk)
                result.bytes += len(chunk)
                self._on_progress(0, len(chunk))
                yield chunk

        counted = count_chunks()
        try:
            self.store.write(part.target, part.offset, counted)
        except FileNotFoundError:  # it was renamed here just now
            for _ in counted:
                pass
            return False
        return count >= part.size

    def remove_stale_partials(self, origin: str, offered: Mapping[str, Any]) -> None:
        """What was begun, and is not there any more."""
        for name, whose in list(self.state.partial.items()):
            if whose == origin and name not in offered:
                self.store.remove(partial_path(self.path(name)))
                del self.state.partial[name]

    def _local_infos(
        self, names: Iterable[str], path_of: Callable[[str], str] = str
    ) -> dict[str, FileInfo | None]:
        names = list(names)
        return dict(
            zip(names, self.store.file_infos([path_of(self.path(n)) for n in names]), strict=True)
        )

    def _remove_links_above(self, names: Iterable[str]) -> None:
        """That came from there when they were links, and are folders now."""
        above = {name[:i] for name in names for i, letter in enumerate(name) if letter == "/"}
        for name in above & set(self.state.files):
            info = self.state.files[name][2]
            if info and info[_LINK] not in ("", FOLDER):
                self.store.remove(self.path(name))
                del self.state.files[name]

    def _make_links(
        self, origin: str, links: Mapping[str, OfferedFile], present: Mapping[str, FileInfo | None]
    ) -> None:
        for name, offer in links.items():
            info = present[name]
            if info is None or info[_LINK] != offer.info[_LINK]:
                self.store.make_link(self.path(name), offer.info[_LINK])
        for name, info in self._local_infos(links).items():
            self.state.files[name] = [origin, links[name].info, info]

    def _compare(
        self,
        source: FileStore,
        offers: Mapping[str, OfferedFile],
        present: Mapping[str, FileInfo | None],
        partial: Mapping[str, FileInfo | None],
        offered: Mapping[str, OfferedFile],
    ) -> set[tuple[str, str]]:
        """Which copies begin as what is offered: (name, ""); which unfinished ones: (name,
        "coming"); which logs as what was the log before: (name, "1")."""
        comparisons: dict[tuple[str, str], tuple[Any, Any]] = {}
        for name, offer in offers.items():
            path, info, begun = self.path(name), present[name], partial[name]
            if begun and begun[_SIZE] <= offer.info[_SIZE]:
                comparisons[name, "coming"] = _comparison(offer, partial_path(path), begun[_SIZE])
            if info is None or info[_LINK]:
                continue
            comparisons[name, ""] = _comparison(offer, path, info[_SIZE])
            one = offered.get(f"{name}.1") if name.endswith(".log") else None
            if one and one.info[_SIZE] >= info[_SIZE] > 0:
                comparisons[name, "1"] = _comparison(one, path, info[_SIZE])
        remote_digests = source.digests([pair[0] for pair in comparisons.values()])
        local_digests = self.store.digests([pair[1] for pair in comparisons.values()])
        return {
            key
            for key, a, b in zip(comparisons, remote_digests, local_digests, strict=True)
            if a == b != ""
        }

    def _choose_actions(
        self,
        offers: Mapping[str, OfferedFile],
        present: Mapping[str, FileInfo | None],
        matching: set[tuple[str, str]],
    ) -> dict[str, str]:
        actions = {}
        for name, offer in offers.items():
            known = self.state.files.get(name)
            is_unchanged = known is not None and known[2] in (None, present[name])
            actions[name] = choose_action(
                name, offer.info, present[name], is_unchanged, (name, "") in matching
            )
        return actions

    def _rename_rotated_logs(
        self,
        new: Mapping[str, OfferedFile],
        present: dict[str, FileInfo | None],
        matching: set[tuple[str, str]],
        actions: dict[str, str],
    ) -> None:
        """Of logs that were begun anew there: what we have of the one before is NAME.log.1."""
        for name in [n for n in new if (n, "1") in matching and actions[n] in ("whole", "aside")]:
            rotated = f"{name}.1"
            self.store.rename(self.path(name), self.path(rotated))
            present[rotated], present[name] = present[name], None
            actions[name], actions[rotated] = "whole", "append"

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
            whole, begun = action in ("whole", "aside"), partial.get(name)
            if begun and not (whole and (name, "coming") in matching):
                self.store.remove(partial_path(path))
                begun = None
            if action == "append" and info:
                parts.append(FilePart(name, offer, info[_SIZE], path, path))
            if not whole:
                continue
            old_path = ""
            if action == "aside":
                log = name.endswith(".log")
                old_path = ("" if f"{name}.1" in offers else f"{path}.1") if log else _MOVE_ASIDE
            offset = begun[_SIZE] if begun else 0
            parts.append(FilePart(name, offer, offset, partial_path(path), path, old_path))
        # What grows is short, and goes first.
        return sorted(parts, key=lambda part: (part.target != part.final_path, part.size))


def choose_action(
    name: str, offered: FileInfo, present: FileInfo | None, is_unchanged: bool, matches: bool
) -> str:
    """What is to be done: "nothing", "keep", "append", "whole", or "aside" and then whole.

    `is_unchanged`: nobody changed the copy since it was brought.
    `matches`: both are the same, as far as the shorter goes.
    """
    if present is None or present[_LINK]:
        return "whole"
    more = offered[_SIZE] - present[_SIZE]
    if matches and more >= 0:
        return "append" if more else "nothing"
    # What was put aside as NAME.log.1 is nobody's work, unless the log is.
    is_unchanged |= name.endswith(".log.1") and name.removesuffix(".1") not in _MIRRORED_FILES
    if matches and (name in _MIRRORED_FILES or not is_unchanged):  # the copy has more
        return "keep"
    if name.endswith(".log"):
        return "aside"
    return "whole" if is_unchanged or name.endswith(".log.1") else "aside"


def partial_path(path: str) -> str:
    """The name of what is not whole yet."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.coming")


def is_safe(name: str, offer: OfferedFile) -> bool:
    """Whether it stays within its folder, whatever the other end says, and hides nothing."""
    to = posixpath.normpath(posixpath.join(posixpath.dirname(name), offer.info[_LINK]))
    parts = name.split("/")
    return all(part and part[0] != "." for part in parts) and not to.startswith(("../", "/"))


def _comparison(offer: OfferedFile, path: str, size: int) -> tuple[Any, Any]:
    """The same parts of what is offered and of a copy of so many bytes, for `digests`."""
    common = min(size, offer.info[_SIZE])
    spans = [[0, common]]
    if common > _COMPARE_WHOLE_BYTES and offer.info[_SIZE] > size:
        spans = [[0, _SAMPLE_BYTES], [common - _SAMPLE_BYTES, _SAMPLE_BYTES]]
    return [offer.path, spans], [path, spans]
