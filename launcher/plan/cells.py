"""The values that a cell of the CSV may have; `workers_csv` calls it for each row.

Each function returns what is wrong with a value, in words that follow "row 3, column ip: ", or an
empty string.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator

from impala_mm.config.messages import describe_character, quote

_MAX_NAME = 253  # letters of a host name, and of a part between two dots, in DNS
_MAX_PART = 63
_NOT_IN_NAMES = r"[\s,:/@]"
_GPU = r"\s*(?:[0-9]{1,4}|-1|NoDevFiles|(?:GPU|MIG)-[0-9A-Za-z/-]{1,120})\s*"
_WITH_TABS = ("setup", "ssh_password")  # columns in which a tab is no mistake


def address_mistake(text: str) -> str:
    """Return why a text is neither an address nor a host name that DNS can look up."""
    return next((f"{quote(text)} {what}" for what in _address_mistakes(text)), "")


def _address_mistakes(text: str) -> Iterator[str]:
    """Yield what is wrong with a host name; each check assumes that the ones before it passed."""
    if found := _first(text, lambda each: not each.isprintable()):
        position, character = found
        named = describe_character(character)
        yield f"contains an invisible character, {named}, at position {position}: remove it"
    if not text or re.search(_NOT_IN_NAMES, text):
        also = "; for an IPv6 host use its name" if ":" in text else ""
        yield f"is not an address or host name{also}"
    if text.startswith(("-", ".")):
        yield f"begins with {text[0]!r}, which no host name does"
    if len(text) > _MAX_NAME:
        yield f"is longer than {_MAX_NAME} letters, the maximum for a host name"
    parts = text.removesuffix(".").split(".")
    if not all(parts):
        yield "has an empty part between two dots"
    if (longest := max(map(len, parts))) > _MAX_PART:
        yield f"has a part of {longest} letters between dots; the maximum is {_MAX_PART}"
    encoded = ""
    try:
        encoded = text.encode("idna").decode()
    except UnicodeError as error:
        yield f"cannot be encoded as a host name for DNS: {error.__cause__ or error}"
    if len(encoded) > _MAX_NAME:
        yield f"is longer than {_MAX_NAME} letters when it is encoded for DNS"
    if re.search(_NOT_IN_NAMES, encoded):
        yield f"is not a host name: DNS reads it as {encoded!r}"


def gpus_mistake(text: str) -> str:
    """Return why a text is not a value of CUDA_VISIBLE_DEVICES."""
    if re.fullmatch(f"{_GPU}(?:,{_GPU})*", text):
        return ""
    return (
        f"{quote(text)} is not a list of GPUs; use numbers or UUIDs (GPU-..., MIG-...), separated "
        f"by commas, or -1 for none"
    )


def character_mistake(column: str, text: str) -> str:
    """Return which control character a text contains; a password is not shown."""
    allowed = "\t" if column in _WITH_TABS else ""
    found = _first(text, lambda each: unicodedata.category(each) == "Cc" and each not in allowed)
    if not found:
        return ""
    position, character = found
    shown = "the value" if column == "ssh_password" else quote(text)
    if character in "\r\n":
        return f"{shown} contains a line break, which no process can get"
    return (
        f"{shown} contains a control character, {describe_character(character)}, at position "
        f"{position}: remove it"
    )


def _first(text: str, is_wrong: Callable[[str], bool]) -> tuple[int, str] | None:
    """Return the position, counted from 1, of the first wrong character, and the character."""
    return next(((i, each) for i, each in enumerate(text, 1) if is_wrong(each)), None)
