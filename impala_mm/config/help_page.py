"""The pages of --help: the flags that most people set, all flags, or those about some words."""

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from impala_mm.config import peer_names
from impala_mm.config.flags import AUTO, OldName, info, refuse


def shown_choices(f: dataclasses.Field) -> list[str]:
    """Return the choices that a user types; the empty one stands for an unset flag."""
    return [choice for choice in info(f).choices if choice]


def shown_default(f: dataclasses.Field) -> str:
    """Return a flag's default as --help prints it."""
    if info(f).auto and f.default == AUTO:
        return "auto"
    if f.default in {"", ()}:
        return "unset"
    return str(f.default).lower() if f.type is bool else repr(f.default)


def _rules(f: dataclasses.Field) -> str:
    """Return sentences on when a flag has an effect, and on resumed runs; usually empty."""
    conditions = [c.words for c in (info(f).needs, info(f).only_with) if c]
    only = f" Only with {'; '.join(conditions)}." if conditions else ""
    return only + " A resumed run keeps it." * bool(info(f).kept_by)


def first(program: str, about: str, fields: Any) -> str:
    """Return the page on the flags that most people set, a line for each."""
    lines, group = [about.strip(), "", f"usage: {program} [--name=value ...]"], ""
    for f in fields:
        if not info(f).short:
            continue
        if info(f).group != group:
            group = info(f).group
            lines += ["", f"{group}:"]
        default = shown_default(f).strip("'")
        shown = f" ({default})" * (default not in {"unset", "false"})
        lines += [f"  --{f.name:<25} {info(f).short}{shown}"]
    return "\n".join([*lines, "", *_OTHER_PAGES])


_OTHER_PAGES = (
    "--help=all prints all flags with their whole texts, --help=checkpoint those about a word,",
    "--help --algorithm=ppo those of an algorithm. --flagfile=PATH reads more flags from a file.",
)


def of_algorithm(fields: Any, shared: Any) -> str:
    """Return the page on an algorithm: its flags besides the shared ones, and its own defaults."""
    known = {f.name: f for f in shared}
    others = [
        f"--{f.name}={shown_default(f)}"
        for f in fields
        if f.name in known and shown_default(f) != shown_default(known[f.name])
    ]
    lines = _describe([f for f in fields if f.name not in known])[1:]
    if others:
        lines += ["", "Its defaults of other flags:", *_wrap(" ".join(others), indent=2)]
    return "\n".join(lines)


def whole(program: str, about: str, fields: Any, old: dict[str, OldName]) -> str:
    """Return the page on all flags."""
    lines = [about.strip(), "", f"usage: {program} [--name=value ...]"]
    lines += [*_describe(fields), "", *_OTHER_PAGES, ""]
    for name, was in old.items():
        lines += _wrap(f"{old_name(name, was)}.")
    return "\n".join(lines)


def about_words(
    words: str, fields: Any, others: dict[str, tuple[dataclasses.Field, list[str]]]
) -> str:
    """Return the part on the flags that have each word, in name, text, choices or other names.

    A word is found by its beginning; one in capitals, such as HER, only as a whole. `others` are
    flags that other algorithms have, with these. Words that no flag has are refused.
    """
    wanted = [
        re.compile(rf"\b{re.escape(word.lower())}" + (r"\b" if word.isupper() else ""))
        for word in _plain(words).split()
    ]

    def is_about(f: dataclasses.Field) -> bool:
        parts = (f.name, info(f).text, *shown_choices(f), peer_names.of_flag(f.name))
        text = _plain(" ".join(parts)).lower()
        return all(word.search(text) for word in wanted)

    matching = [f for f in [*fields, *(f for f, _ in others.values())] if is_about(f)]
    if not matching:
        ours = peer_names.here(words)
        refuse(f"--help={words}: no flag is about that" + (ours or " (`--help=all` lists them)"))
    return "\n".join(_describe(matching, {name: of for name, (_, of) in others.items()})[1:])


def _plain(words: str) -> str:
    return words.replace("-", " ").replace("_", " ")


def _describe(fields: Any, algorithms: Mapping[str, list[str]] = MappingProxyType({})) -> list[str]:
    """Return the lines on flags, by group: each flag's text, choices and default.

    `algorithms` has those of flags that the program lacks without them.
    """
    lines, before = [], None
    for f in fields:
        group = info(f).group
        if f.name in algorithms:
            group += f" (with --algorithm={' or '.join(algorithms[f.name])})"
        if group != before:
            before = group
            lines += ["", f"{group}:"]
        shown = ", ".join(shown_choices(f))
        choices = f" Choices: {shown}." if shown else ""
        text = f"{info(f).text}{choices} Default: {shown_default(f)}.{_rules(f)}"
        lines += [f"  --{f.name}", *_wrap(text, indent=6)]
    return lines


def _wrap(text: str, indent: int = 0) -> list[str]:
    width, spaces = min(100, shutil.get_terminal_size().columns), " " * indent
    return textwrap.wrap(
        text, width, initial_indent=spaces, subsequent_indent=spaces, break_on_hyphens=False
    )


def old_name(name: str, old: OldName) -> str:
    """Return the note that is printed when an old flag is given."""
    if old.now:
        return f"--{name} is an old name of --{old.now}"
    return f"--{name} is an old flag without effect: {old.why}"
