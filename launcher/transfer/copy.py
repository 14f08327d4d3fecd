"""Files of a folder on one machine brought to a copy of it on another: only what it lacks.

What grew goes on from where the copy ends; what was replaced comes whole, under a name of its own
until it is. What is different in the copy because somebody changed the copy is put aside, never
lost. `saved` does the same for checkpoints, which are whole folders.
"""

import dataclasses
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.node.file_service import FOLDER, About
from launcher.node.task import read_json, write_json
from launcher.remote.remote_files import End

_SMALL = 1 << 20  # bytes of a file that are compared whole
_SAMPLE = 1 << 16  # of a longer one that has grown: so many at its begin, and where the copy ends
_LIVE = ("learners.log", "metrics.jsonl")  # others write to their copies, too (`mirror`)
_SIZE, _INODE, _LINK = 0, 2, 3  # in `About`
_ASIDE = "aside"


class Offer(NamedTuple):
    """A file that is to be had."""

    path: str
    about: About


class Part(NamedTuple):
    """Of a file, to be read at one end and written at the other."""

    name: str
    offer: Offer
    offset: int
    to: str
    final: str  # its name once it is whole; the same where it only grows
    before: str = ""  # where what had that name goes; empty: nowhere

    @property
    def size(self) -> int:
        """Bytes."""
        return self.offer.about[_SIZE] - self.offset


@dataclasses.dataclass
class Brought:
    """How much it was."""

    bytes: int = 0
    files: int = 0
    checkpoints: int = 0
    removed: list[str] = dataclasses.field(default_factory=list)
    late: list[str] = dataclasses.field(default_factory=list)  # they changed meanwhile
    wrong: list[str] = dataclasses.field(default_factory=list)  # sentences


class Known:
    """What a copy had from where, when it was last brought; kept in it, to be asked no more.

    `files`: by name, [origin, About there, About here]; the latter are none while it is brought.
    """

    def __init__(self, path: Path | None = None):
        content = read_json(path) if path else {}
        self._path, self._writing = path, threading.Lock()
        self.files: dict[str, list[Any]] = content.get("files", {})
        self.coming: dict[str, str] = content.get("coming", {})  # begun; from which origin
        self.checkpoints: dict[str, str] = content.get("checkpoints", {})  # names: what they are
        self.damaged: dict[str, str] = content.get("damaged", {})  # there

    def save(self) -> None:
        """For the next."""
        with self._writing:
            if self._path:
                names = ("files", "coming", "checkpoints", "damaged")
                write_json(self._path, {name: getattr(self, name).copy() for name in names})


class Copy:
    """A folder at one end that is to have what others offer."""

    def __init__(
        self, end: End, folder: str, known: Known, came: Callable[[int, int], None] | None = None
    ):
        """`came`: is told of so many bytes more to come, and that so many came."""
        self.end, self.folder, self.known = end, folder, known
        self._came = came or (lambda more, came: None)

    def path(self, name: str) -> str:
        """Of a file of it."""
        return posixpath.join(self.folder, name)

    def bring(self, source: End, origin: str, offers: Mapping[str, Offer], done: Brought) -> None:
        """Raises Lost, Failed, OSError; what came until then is here, and goes on from there."""
        known = self.known.files
        offers = {name: offer for name, offer in offers.items() if is_safe(name, offer)}
        self._remove_links_above(offers)
        here = self._here(offers)
        new = {
            name: offer
            for name, offer in offers.items()
            if known.get(name) != [origin, offer.about, here[name] or ""]
        }
        self._make_links(origin, {n: o for n, o in new.items() if o.about[_LINK]}, here)
        new = {name: offer for name, offer in new.items() if not offer.about[_LINK]}
        unfinished = self._here(new, coming)
        alike = self._compare(source, new, here, unfinished, offers)
        verdicts = self._judged(new, here, alike)
        self._follow_rotations(new, here, alike, verdicts)
        parts = self._parts(offers, here, unfinished, alike, verdicts)
        for name, verdict in verdicts.items():
            known[name] = [origin, None, None]
            if verdict == "keep":
                del known[name]
        self.known.coming |= {part.name: origin for part in parts if part.to != part.final}
        self.known.save()
        try:
            self.carry(source, parts, done)
        finally:
            self.known.save()
        for name, about in self._here(new).items():
            if name in known and name not in done.late:
                known[name] = [origin, new[name].about, about]
        self.known.save()

    def carry(self, source: End, parts: Sequence[Part], done: Brought) -> None:
        """As they are planned, in this order."""
        self._came(sum(part.size for part in parts), 0)
        read = [[p.offer.path, p.offer.about[_INODE], p.offset, p.size] for p in parts]
        pieces = source.read(read)
        for part in parts:
            if self._carry_one(part, pieces, done) < part.size:
                done.late.append(part.name)
                continue
            done.files += 1
            if part.to != part.final:
                if part.before == _ASIDE:
                    self.end.aside(part.final)
                elif part.before:
                    self.end.rename(part.final, part.before)
                self.end.rename(part.to, part.final)
                self.known.coming.pop(part.name, None)

    def _carry_one(self, part: Part, pieces: Iterator[bytes], done: Brought) -> int:
        """The bytes that came."""
        count = 0

        def of_it() -> Iterator[bytes]:
            nonlocal count
            while piece := next(pieces, b""):
                count += len(piece)
                done.bytes += len(piece)
                self._came(0, len(piece))
                yield piece

        took = of_it()
        try:
            self.end.write(part.to, part.offset, took)
        except FileNotFoundError:  # it was renamed here just now
            for _ in took:
                pass
            return -1
        return count

    def forget_coming(self, origin: str, offered: Mapping[str, Any]) -> None:
        """What was begun, and is not there any more."""
        for name, whose in list(self.known.coming.items()):
            if whose == origin and name not in offered:
                self.end.remove(coming(self.path(name)))
                del self.known.coming[name]

    def _here(
        self, names: Iterable[str], as_what: Callable[[str], str] = str
    ) -> dict[str, About | None]:
        names = list(names)
        return dict(zip(names, self.end.about([as_what(self.path(n)) for n in names]), strict=True))

    def _remove_links_above(self, names: Iterable[str]) -> None:
        """That came from there when they were links, and are folders now."""
        above = {name[:i] for name in names for i, letter in enumerate(name) if letter == "/"}
        for name in above & set(self.known.files):
            about = self.known.files[name][2]
            if about and about[_LINK] not in ("", FOLDER):
                self.end.remove(self.path(name))
                del self.known.files[name]

    def _make_links(
        self, origin: str, links: Mapping[str, Offer], here: Mapping[str, About | None]
    ) -> None:
        for name, offer in links.items():
            about = here[name]
            if about is None or about[_LINK] != offer.about[_LINK]:
                self.end.link(self.path(name), offer.about[_LINK])
        for name, about in self._here(links).items():
            self.known.files[name] = [origin, links[name].about, about]

    def _compare(
        self,
        source: End,
        offers: Mapping[str, Offer],
        here: Mapping[str, About | None],
        unfinished: Mapping[str, About | None],
        offered: Mapping[str, Offer],
    ) -> set[tuple[str, str]]:
        """Which copies begin as what is offered: (name, ""); which unfinished ones: (name,
        "coming"); which logs as what was the log before: (name, "1")."""
        asked: dict[tuple[str, str], tuple[Any, Any]] = {}
        for name, offer in offers.items():
            path, about, begun = self.path(name), here[name], unfinished[name]
            if begun and begun[_SIZE] <= offer.about[_SIZE]:
                asked[name, "coming"] = _to_compare(offer, coming(path), begun[_SIZE])
            if about is None or about[_LINK]:
                continue
            asked[name, ""] = _to_compare(offer, path, about[_SIZE])
            one = offered.get(f"{name}.1") if name.endswith(".log") else None
            if one and one.about[_SIZE] >= about[_SIZE] > 0:
                asked[name, "1"] = _to_compare(one, path, about[_SIZE])
        there = source.digests([pair[0] for pair in asked.values()])
        ours = self.end.digests([pair[1] for pair in asked.values()])
        return {key for key, a, b in zip(asked, there, ours, strict=True) if a == b != ""}

    def _judged(
        self,
        offers: Mapping[str, Offer],
        here: Mapping[str, About | None],
        alike: set[tuple[str, str]],
    ) -> dict[str, str]:
        verdicts = {}
        for name, offer in offers.items():
            known = self.known.files.get(name)
            ours = known is not None and known[2] in (None, here[name])
            verdicts[name] = judge(name, offer.about, here[name], ours, (name, "") in alike)
        return verdicts

    def _follow_rotations(
        self,
        new: Mapping[str, Offer],
        here: dict[str, About | None],
        alike: set[tuple[str, str]],
        verdicts: dict[str, str],
    ) -> None:
        """Of logs that were begun anew there: what we have of the one before is NAME.log.1."""
        for name in [n for n in new if (n, "1") in alike and verdicts[n] in ("whole", "aside")]:
            one = f"{name}.1"
            self.end.rename(self.path(name), self.path(one))
            here[one], here[name] = here[name], None
            verdicts[name], verdicts[one] = "whole", "append"

    def _parts(
        self,
        offers: Mapping[str, Offer],
        here: Mapping[str, About | None],
        unfinished: Mapping[str, About | None],
        alike: set[tuple[str, str]],
        verdicts: Mapping[str, str],
    ) -> list[Part]:
        parts = []
        for name, verdict in verdicts.items():
            offer, path, about = offers[name], self.path(name), here[name]
            whole, begun = verdict in ("whole", "aside"), unfinished.get(name)
            if begun and not (whole and (name, "coming") in alike):
                self.end.remove(coming(path))
                begun = None
            if verdict == "append" and about:
                parts.append(Part(name, offer, about[_SIZE], path, path))
            if not whole:
                continue
            before = ""
            if verdict == "aside":
                log = name.endswith(".log")
                before = ("" if f"{name}.1" in offers else f"{path}.1") if log else _ASIDE
            offset = begun[_SIZE] if begun else 0
            parts.append(Part(name, offer, offset, coming(path), path, before))
        # What grows is short, and goes first.
        return sorted(parts, key=lambda part: (part.to != part.final, part.size))


def judge(name: str, there: About, here: About | None, ours: bool, alike: bool) -> str:
    """What is to be done: "nothing", "keep", "append", "whole", or "aside" and then whole.

    `ours`: nobody changed the copy since it was brought; `alike`: as far as the shorter goes.
    """
    if here is None or here[_LINK]:
        return "whole"
    more = there[_SIZE] - here[_SIZE]
    if alike and more >= 0:
        return "append" if more else "nothing"
    # What was put aside as NAME.log.1 is nobody's work, unless the log is.
    ours |= name.endswith(".log.1") and name.removesuffix(".1") not in _LIVE
    if alike and (name in _LIVE or not ours):  # the copy has more
        return "keep"
    if name.endswith(".log"):
        return "aside"
    return "whole" if ours or name.endswith(".log.1") else "aside"


def coming(path: str) -> str:
    """The name of what is not whole yet."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.coming")


def is_safe(name: str, offer: Offer) -> bool:
    """Whether it stays within its folder, whatever the other end says, and hides nothing."""
    to = posixpath.normpath(posixpath.join(posixpath.dirname(name), offer.about[_LINK]))
    parts = name.split("/")
    return all(part and part[0] != "." for part in parts) and not to.startswith(("../", "/"))


def _to_compare(offer: Offer, path: str, size: int) -> tuple[Any, Any]:
    """The same parts of what is offered and of a copy of so many bytes, for `digests`."""
    common = min(size, offer.about[_SIZE])
    spans = [[0, common]]
    if common > _SMALL and offer.about[_SIZE] > size:
        spans = [[0, _SAMPLE], [common - _SAMPLE, _SAMPLE]]
    return [offer.path, spans], [path, spans]
