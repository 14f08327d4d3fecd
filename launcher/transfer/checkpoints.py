"""Checkpoints brought from one machine to a copy of the run's folder: whole or not at all.

    checkpoints/0000012000/about.json   what it says of itself, and size and SHA-256 of each file

`impala_mm.checkpoint` writes them. One comes under a hidden name and gets its own when every file
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
from launcher.remote.remote_files import End
from launcher.transfer.copy import Brought, Copy, Offer, Part, coming

_FOLDER = "checkpoints"
_ABOUT = "about.json"
_MOST = 1 << 24  # bytes of an about.json


class Saved(NamedTuple):
    """What one says of itself."""

    files: dict[str, list[Any]]  # bytes and SHA-256 of each
    merit: float  # the mean return; minus infinity where it is not known
    milestone: bool


def divide(
    offers: Mapping[str, Offer],
) -> tuple[dict[str, Offer], dict[str, dict[str, Offer]]]:
    """Files of no checkpoint, and those of each, by its name and theirs."""
    files: dict[str, Offer] = {}
    saved: dict[str, dict[str, Offer]] = {}
    for name, offer in offers.items():
        found = re.fullmatch(rf"{_FOLDER}/(\d+)/([^/.][^/]*)", name)
        if found:
            saved.setdefault(found[1], {})[found[2]] = offer
        elif not re.match(rf"{_FOLDER}/\d+/", name):
            files[name] = offer
    whole = {name: parts for name, parts in saved.items() if _ABOUT in parts}
    return files, whole


def path(name: str) -> str:
    """Of one, in its run's folder."""
    return f"{_FOLDER}/{name}"


def told(content: Any) -> Saved | None:
    """By its about.json; None where that is something else."""
    try:
        merit = content["episode_return"]
        return Saved(
            files={str(n): [int(size), str(sha)] for n, (size, sha) in content["files"].items()},
            merit=-math.inf if merit is None else float(merit),
            milestone=bool(content.get("milestone")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def superfluous(
    here: Mapping[str, Saved], there: Collection[str], brought: Collection[str]
) -> list[str]:
    """Of those here, what the other end does not keep any more, and nobody may miss."""
    best = max(here, key=lambda name: (here[name].merit, name), default="")
    newest = max((name for name in there if name in here), default="")
    return [
        name
        for name, saved in here.items()
        if name in brought and name not in there and name < newest
        if name != best and not saved.milestone
    ]


def prune(copy: Copy, there: Collection[str], done: Brought) -> None:
    """What is `superfluous` in a copy on this machine."""
    folder = Path(copy.folder) / _FOLDER
    here = {path.parent.name: told(read_json(path)) for path in folder.glob(f"[0-9]*/{_ABOUT}")}
    whole = {name: saved for name, saved in here.items() if saved and name.isdigit()}
    for name in superfluous(whole, there, copy.known.checkpoints):
        gone = folder / f".{name}.gone"
        copy.end.rename(str(folder / name), str(gone))  # nobody sees half of it
        copy.end.remove(str(gone))
        del copy.known.checkpoints[name]
        done.removed.append(name)


def bring(
    copy: Copy, source: End, origin: str, offered: Mapping[str, dict[str, Offer]], done: Brought
) -> None:
    """The newest first. Raises Lost, Failed, OSError; goes on with what came until then."""
    names = sorted(offered, reverse=True)
    there = source.digests([_all_of(offered[name][_ABOUT]) for name in names])
    final = [copy.path(f"{_FOLDER}/{name}/{_ABOUT}") for name in names]
    sizes = [about[0] if about else 0 for about in copy.end.about(final)]
    here = copy.end.digests([[p, [[0, size]]] for p, size in zip(final, sizes, strict=True)])
    try:
        for name, sha, ours in zip(names, there, here, strict=True):
            if sha not in ("", ours, copy.known.damaged.get(name)):
                _Coming(copy, source, origin, name, sha).bring(offered[name], done)
    finally:
        copy.known.save()


class _Coming:
    """One that is brought."""

    def __init__(self, copy: Copy, source: End, origin: str, name: str, sha: str):
        """`sha`: of its about.json, which says all of it."""
        self._copy, self._source, self._name, self._sha = copy, source, name, sha
        self._final = copy.path(f"{_FOLDER}/{name}")
        self._work = coming(self._final)
        copy.known.coming[f"{_FOLDER}/{name}"] = origin

    def bring(self, offers: dict[str, Offer], done: Brought) -> None:
        """If it is as whole there as it says."""
        known = self._copy.known
        content = b"".join(self._source.read([_all_of_it(offers[_ABOUT])]))
        saved = told(_json(content))
        if saved is None or not _fits(saved, offers):  # it is being removed, perhaps
            done.late.append(f"{_FOLDER}/{self._name}")
            return
        parts = self._parts(saved, offers, content)
        came = Brought()
        try:
            self._copy.carry(self._source, parts, came)
        finally:
            done.bytes += came.bytes
        if came.late:
            done.late.append(f"{_FOLDER}/{self._name}")
        elif wrong := self._wrong(saved):
            self._copy.end.remove(self._work)
            if any(
                part.offset for part in parts
            ):  # of another one, it seems: again, from its begin
                done.late.append(f"{_FOLDER}/{self._name}")
                return
            known.damaged[self._name] = self._sha
            done.wrong.append(
                f"checkpoint {self._name} is damaged there ({wrong} is not what was written)"
            )
        else:
            self._put_in_place()
            known.checkpoints[self._name] = self._sha
            known.damaged.pop(self._name, None)
            done.checkpoints += 1

    def _parts(self, saved: Saved, offers: dict[str, Offer], content: bytes) -> list[Part]:
        """What is not here yet of each file."""
        end = self._copy.end
        about = f"{self._work}/{_ABOUT}"
        if end.digests([[about, [[0, len(content)]]]]) != [self._sha]:
            end.remove(self._work)
            end.write(about, 0, [content])
        paths = [f"{self._work}/{file}" for file in saved.files]
        parts = []
        for file, path, begun in zip(saved.files, paths, end.about(paths), strict=True):
            size = saved.files[file][0]
            offset = begun[0] if begun and begun[0] <= size else 0
            if begun and begun[0] > size:
                end.remove(path)
            if begun is None or offset < size:
                parts.append(Part(file, offers[file], offset, path, path))
        return parts

    def _wrong(self, saved: Saved) -> str:
        """The first file that is not what it should be."""
        asked = [[f"{self._work}/{file}", [[0, size]]] for file, (size, _) in saved.files.items()]
        found = self._copy.end.digests(asked)
        pairs = zip(saved.files.items(), found, strict=True)
        return next((file for (file, (_, sha)), ours in pairs if ours != sha), "")

    def _put_in_place(self) -> None:
        """One of the same number that came before goes; one that did not is put aside."""
        end, before = self._copy.end, f"{_FOLDER}/.{self._name}.gone"
        replaced = self._copy.known.checkpoints.get(self._name) and end.about([self._final])[0]
        if replaced:
            end.remove(self._copy.path(before))
            end.rename(self._final, self._copy.path(before))
        end.rename(self._work, self._final)
        if replaced:
            end.remove(self._copy.path(before))
        self._copy.known.coming.pop(f"{_FOLDER}/{self._name}", None)


def _fits(saved: Saved, offers: Mapping[str, Offer]) -> bool:
    """Whether every file is there, and as long as it should be."""
    return all(
        file in offers and not offers[file].about[3] and offers[file].about[0] == size
        for file, (size, _) in saved.files.items()
    )


def _all_of(offer: Offer) -> list[Any]:
    """For `digests`."""
    return [offer.path, [[0, min(offer.about[0], _MOST)]]]


def _all_of_it(offer: Offer) -> list[Any]:
    """For `read`."""
    return [offer.path, offer.about[2], 0, min(offer.about[0], _MOST)]


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
