"""The limits of what an actor's messages may say, and whether the actor belongs to this run.

The credentials of an actor do not keep a bug from its messages. `server` checks each hello and each
header before anything is kept of it: what cannot be, or does not fit the learner, is refused in
words.
"""

import json
from collections.abc import Sequence
from typing import Any

from impala_mm.config import messages
from impala_mm.transport.messages import (
    CONTENT_OMITTED,
    MAX_ENVIRONMENTS,
    UNROLLS,
    ActorTimes,
    MessageHeader,
)

_MAX_COUNT = 2**50  # of a header's counts and microseconds: 35 years
_COUNTS = (
    *("number", "dropped", *ActorTimes._fields, "version", "environments", "faults"),
    *("millicores", "memory"),
)
_FAILURE = ("text", "kind", "traceback", "gave_up")
# What the transport reads itself; what else must be equal has its words in the identity's "shared".
_WORDS = {
    "protocol": "protocol version",
    "inference": "place of inference (--inference)",
    "level_name": "environment (--level_name)",
}


def parse_hello(request: bytes) -> tuple[dict[str, Any], str]:
    """Return the content of a hello, and what is wrong with its types and numbers; or empty."""
    try:
        asked = json.loads(request)
    except (ValueError, RecursionError):
        return {}, "its hello is not JSON"
    if not isinstance(asked, dict):
        return {}, "its hello is no JSON object"
    for name, (is_right, words) in _FIELDS.items():
        if name in asked and not is_right(asked[name]):
            shown = messages.escape_line(repr(asked[name]), 100)
            return {}, f"its hello has the {name} {shown}, which must be {words}"
    if ("failure" in asked or not asked.get("probe")) and "actor" not in asked:
        return {}, "its hello has no number of the actor"
    return asked, ""


def header_mistake(header: MessageHeader, sizes: Sequence[int], infers: bool) -> str:
    """Return what is wrong with the numbers of a message; empty if nothing is.

    `sizes` are those of the actor's groups of environments, empty if it has not named them.
    `infers`: whether the learner chooses actions, and gets steps of groups instead of unrolls.
    """
    for name in _COUNTS:
        if not 0 <= (value := getattr(header, name)) < _MAX_COUNT:
            return f"its {name} is {value}"
    if header.chunks < CONTENT_OMITTED:
        return f"its number of chunks is {header.chunks}"
    if not infers:
        if header.stream != UNROLLS:
            return f"it is a step of group {header.stream}, but this learner takes unrolls"
        most = sum(sizes)
    elif not 0 <= header.stream < (len(sizes) or MAX_ENVIRONMENTS):
        return f"it is a step of group {header.stream} of {len(sizes)}"
    else:
        most = sizes[header.stream] if sizes else 0
    if header.environments > (most or MAX_ENVIRONMENTS) or (infers and not header.environments):
        return f"it has {header.environments} environments of {most or MAX_ENVIRONMENTS}"
    return ""


def _is_number(value: Any, below: int) -> bool:
    return type(value) is int and 0 <= value < below


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_groups(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(type(size) is int and size > 0 for size in value)
        and sum(value) <= MAX_ENVIRONMENTS
    )


def _are_named_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_numbered(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_text(value.get("run"))
        and _is_number(value.get("first"), 2**31)
    )


def _is_failure(value: Any) -> bool:
    return isinstance(value, dict) and all(name in value for name in _FAILURE)


# What a field of a hello must be, where it has it.
_FIELDS = {
    "actor": (lambda x: _is_number(x, 2**31), "a whole number from 0 to 2,147,483,647"),
    "incarnation": (lambda x: _is_number(x, 2**62), "a whole number of at most 62 bits"),
    "start": (_is_text, "a text"),
    "level": (_is_text, "a text"),
    "host_name": (_is_text, "a text"),
    "learners": (_are_texts, "a list of texts"),
    "groups": (_are_groups, f"a list of sizes, together at most {MAX_ENVIRONMENTS:,}"),
    "numbered": (_is_numbered, "an object with a run's id and the first number of environments"),
    "shared": (_are_named_texts, "an object of texts"),
    "failure": (_is_failure, f"an object with the fields {', '.join(_FAILURE)}"),
}


def other_run(asked: dict[str, Any], start: str) -> str:
    """Return a sentence if the learner belongs to another run than the caller; empty if not.

    `start` is the learner's id of its start (`starter.start_id`). A caller that was started by
    hand has none, and may join any run.
    """
    theirs = asked.get("start", "")
    if theirs in {"", start}:
        return ""
    mine = f"run {start}" if start else "a learner that was started by hand"
    return f"this learner belongs to another run ({mine}) than this actor (run {theirs})"


def refusal(asked: dict[str, Any], identity: dict[str, Any]) -> str:
    """Return a sentence that says why an actor that sent `asked` is refused; empty if accepted."""
    theirs, mine = (
        {words: each.get(name) for name, words in _WORDS.items()} | each.get("shared", {})
        for each in (asked, identity)
    )
    # An actor that only steps has no network: it sends what it has.
    for words in theirs if asked.get("inference") == "learner" else mine | theirs:
        if (here := theirs.get(words, "missing")) != (there := mine.get(words, "missing")):
            return f"this actor's {words} is {here}, the learner's is {there}"
    return ""
