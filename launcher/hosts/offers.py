"""Judges what a machine offers to a copy: no name or link of it may lead out of the copy's folder.

The host that lists the files may have been taken over. `copy` calls this before it changes a file.
"""

import posixpath
from collections.abc import Collection, Mapping
from typing import NamedTuple

from launcher.supervise.file_service import FileInfo

LINK = 3  # in `FileInfo`: the target of a link; empty for a file
_MAX_NAMED = 3  # refused files that a message names


class OfferedFile(NamedTuple):
    """A file that the source offers."""

    path: str
    info: FileInfo


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


def refusal(names: Collection[str], why: str) -> str:
    """Return the message that these files were not copied; of many, the first are named."""
    first, more = sorted(names)[:_MAX_NAMED], len(names) - _MAX_NAMED
    rest = f" and {more:,} more" if more > 0 else ""
    return f"{', '.join(first)}{rest} not copied, since {why}"
