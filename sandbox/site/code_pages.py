"""The pages of the site that are written from the code: flags, columns, files, commands, Python.

`hook.py` adds them to the site; they have no other form.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_mm import console
from impala_mm.config import algorithm_settings, help_page
from impala_mm.config.flags import info
from impala_mm.config.settings import Config
from impala_mm.records import run_folder
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import COLUMNS

FLAGS, FRONTEND = "reference/flags.md", "reference/frontend.md"
_ROOT = Path(__file__).resolve().parents[2]
_ATARI = "PongNoFrameskip-v4"  # settings may have other defaults for its kind of levels
# In CONTRIBUTING.md: a module or a name in it, and names in it that are public.
_PUBLIC = re.compile(r"`((?:impala_mm|nets)[\w.]*)`(?:\s+\(((?:`\w+`,?\s*)+)\))?")


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the site."""
    return {
        FLAGS: _flags_page(),
        FRONTEND: _frontend_page(),
        "reference/csv.md": _csv_page(),
        "reference/run_folder.md": _run_folder_page(),
        "reference/commands.md": _commands_page(),
        "reference/python.md": _python_page(),
    }


class _Flag(NamedTuple):
    """A flag, and what each algorithm that has it makes of its default."""

    anchor: str
    f: dataclasses.Field
    of: dict[str, dataclasses.Field]  # by algorithm; those on Atari's games are "ppo on Atari"


_FRONTENDS = [_Flag(f.name, f, {}) for f in dataclasses.fields(LauncherConfig)]


@functools.cache
def flag_pages() -> dict[str, str]:
    """Return the page of each flag by its name."""
    pages = ((FLAGS, _all_flags()), (FRONTEND, _FRONTENDS))
    return {flag.f.name: page for page, flags in pages for flag in flags}


@functools.cache
def _all_flags() -> list[_Flag]:
    """Return the flags that all algorithms share, and then those that some have.

    Two algorithms may have flags of one name that mean different things: then both are there.
    """
    found: dict[tuple[str, str], _Flag] = {}
    for name in algorithm_settings.BUILT_IN:
        settings = algorithm_settings.settings_type(name, Config)
        on_atari = settings.suited_to(_ATARI)
        for kind, fields in ((name, _fields(settings)), (f"{name} on Atari", _fields(on_atari))):
            for f in fields:
                is_new = f.name not in {known for known, _ in found}
                anchor = f.name if is_new else f"{f.name}-of-{name}"
                shared = next((each for each in _fields(Config) if each.name == f.name), f)
                flag = _Flag(anchor, shared, {})
                found.setdefault((f.name, info(f).text), flag).of[kind] = f
    # Those that all have come first, in the order of --help.
    return sorted(found.values(), key=lambda flag: flag.f.name not in Config.__dataclass_fields__)


def _fields(settings: type) -> Iterable[dataclasses.Field]:
    return dataclasses.fields(settings)


def _flags_page() -> str:
    lines = [
        "# Flags",
        "Every flag of `experiment.py` and, but for those that it sets itself, of"
        " `run_experiment_mm_raw.py`. `python experiment.py --help --algorithm=ppo` prints those of"
        " an algorithm with its defaults. [Presets and files](../sandbox/settings.md) are sets of"
        " flags, and `impala_mm.train` takes flags as keywords.",
    ]
    for group, flags in _grouped(_all_flags()):
        lines += [f"## {group}", *(line for flag in flags for line in _explain(flag))]
    return "\n\n".join(lines)


def _frontend_page() -> str:
    lines = [
        "# Flags of the frontend",
        "The flags that only `run_experiment_mm_raw.py` has. It accepts [those of"
        " `experiment.py`](flags.md), too, and passes them on.",
    ]
    for group, flags in _grouped(_FRONTENDS):
        lines += [f"## {group}", *(line for flag in flags for line in _explain(flag))]
    return "\n\n".join(lines)


def _grouped(flags: Iterable[_Flag]) -> Iterator[tuple[str, list[_Flag]]]:
    """Yield each heading of --help and its flags."""
    groups: dict[str, list[_Flag]] = {}
    for flag in flags:
        groups.setdefault(info(flag.f).group, []).append(flag)
    yield from groups.items()


def _explain(flag: _Flag) -> list[str]:
    """Return a flag's heading, which a link reaches by its anchor, its facts and its text."""
    f, known = flag.f, info(flag.f)
    facts = [f"default `{help_page.shown_default(f)}`", *_other_defaults(flag)]
    if choices := help_page.shown_choices(f):
        facts.append("one of " + ", ".join(f"`{choice}`" for choice in choices))
    facts += [f"at least {known.least:g}"] * (-math.inf < known.least)
    facts += [f"at most {known.most:g}"] * (known.most < math.inf)
    facts += ["may be `auto`"] * known.auto
    facts += ["each process may have its own"] * known.own
    facts += ["a resumed run keeps it"] * bool(known.kept_by)
    facts += [f"only with {c.words}" for c in (known.needs, known.only_with) if c]
    having = [name for name in flag.of if name in algorithm_settings.BUILT_IN]
    facts += [f"of {', '.join(having)}"] * (0 < len(having) < len(algorithm_settings.BUILT_IN))
    line = "; ".join(facts)
    return [
        f"#### `--{f.name}` {{#{flag.anchor}}}",
        f"{line[0].upper()}{line[1:]}.\n{{.facts}}",
        _text(f),
    ]


def _other_defaults(flag: _Flag) -> list[str]:
    """Return the defaults of algorithms, and of their Atari games, that differ from the flag's."""
    other: dict[str, list[str]] = {}
    for kind, f in flag.of.items():
        shown = help_page.shown_default(f)
        named = other.setdefault(shown, [])
        if kind.removesuffix(" on Atari") not in named:
            named.append(kind)
    other.pop(help_page.shown_default(flag.f), None)
    return [f"`{value}` for {', '.join(names)}" for value, names in other.items()]


def _text(f: dataclasses.Field) -> str:
    return _escape(info(f).text)


def _escape(text: str) -> str:
    """Return a help text as Markdown: its stars, underscores and brackets are no markup."""
    return re.sub(r"([*_<>\[\]|\\`])", r"\\\1", text)


def _table(left: str, right: str, rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {a} | {b.strip()} |" for a, b in rows]
    return "\n".join([f"| {left} | {right} |", "|---|---|", *lines])


def _names(listed: str) -> str:
    return ", ".join(f"`{name}`" for name in listed.split(", "))


def _command(f: dataclasses.Field) -> str:
    return f"`--{f.name}{'=...' * (f.type is str)}`"


def _csv_page() -> str:
    """Return the columns, as the comments of workers.csv.example explain them."""
    lines = (_ROOT / "workers.csv.example").read_text().splitlines()
    explained = re.findall(r"^#   (\S.*?)  +(.*(?:\n#      +.*)*)", "\n".join(lines), re.MULTILINE)
    rows = [(_names(names), " ".join(text.replace("#", "").split())) for names, text in explained]
    named = {name for names, _ in explained for name in names.split(", ")}
    if missing := set(COLUMNS) - named:
        raise ValueError(f"workers.csv.example does not explain the columns {sorted(missing)}")
    return "\n\n".join(
        [
            "# Columns of the CSV",
            "A row of the CSV is one process, or `count` actors. The columns `job` and `ip` are"
            " required; the others may be missing, in any order. [A cluster from a"
            " CSV](../sandbox/cluster.md) shows how it is used.",
            _table("column", "meaning", rows),
            "## workers.csv.example",
            "\n".join(["```text", *lines, "```"]),
        ]
    )


def _run_folder_page() -> str:
    """Return the files of a run's folder, as its README.txt lists them."""
    rows: list[list[str]] = []
    _, _, listed = run_folder.README.partition("\n\n")
    for line in listed.splitlines():
        name, text = line[:20].strip(), line[20:].strip()
        if name and len(line) > 20 and line[19] == " ":
            rows.append([name, text])
        elif line.startswith(" "):
            rows[-1][1] += f" {line.strip()}"
        else:  # names that leave no room: the text is on the next line
            rows.append([line.strip(), ""])
    return "\n\n".join(
        [
            "# Files of a run's folder",
            "A run is one folder, the one of `--logdir`. [Keeping and resuming a"
            " run](../sandbox/keeping.md) says how it is used, and [Metrics](../sandbox/metrics.md)"
            " explains `metrics.jsonl`.",
            _table("file", "what it holds", [(_names(name), text) for name, text in rows]),
        ]
    )


def _commands_page() -> str:
    """Return the programs, the modes, the frontend's commands and the targets of make."""
    mode = {f.name: f for f in dataclasses.fields(Config)}["mode"]
    targets = re.findall(r"^([a-z-]+):.*## (.*)$", (_ROOT / "Makefile").read_text(), re.MULTILINE)
    installed = (console.__doc__ or "").partition("\n\n")[2].strip()
    instead = [flag.f for flag in dict(_grouped(_FRONTENDS))["Instead of starting a run"]]
    return "\n\n".join(
        [
            "# Commands",
            "## experiment.py",
            "`--mode` says what to do ([all flags](flags.md)).",
            _table("command", "what it does", _modes(mode)),
            "## run_experiment_mm_raw.py",
            "Without one of these flags it starts the run of `--workers_csv_path` and follows it"
            " ([flags](frontend.md)).",
            _table("command", "what it does", [(_command(f), _text(f)) for f in instead]),
            "## An installed package",
            f"```text\n{installed}\n```",
            "## make",
            "\n".join(
                [
                    "| target | what it does |",
                    "|---|---|",
                    *(f"| `make {t}` | {w} |" for t, w in targets),
                ]
            ),
        ]
    )


def _modes(mode: dataclasses.Field) -> list[tuple[str, str]]:
    """Return each choice of --mode and its part of the help text."""
    names = "|".join(info(mode).choices)
    _, *parts = re.split(rf"(?<=\. )({names}): ", info(mode).text)
    texts = zip(parts[::2], map(_escape, parts[1::2]), strict=True)
    return [(f"`--mode={name}`", f"{text[0].upper()}{text[1:]}") for name, text in texts]


def _python_page() -> str:
    """Return the public names, as CONTRIBUTING.md lists them, for mkdocstrings to explain."""
    text = (_ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## Public Python names\n")[2].partition("\n## ")[0]
    lines = [
        "# Python",
        "The names that your own code may import. If one is renamed, the old name keeps working"
        " for one version. [Training from Python](../sandbox/from_python.md), [your own"
        " environment](../sandbox/own_environment.md) and [your own"
        " algorithm](../sandbox/own_algorithm.md) show their use.",
    ]
    for name, members in _PUBLIC.findall(section):
        lines.append(f"::: {name}")
        if members:
            listed = "".join(f"        - {member}\n" for member in re.findall(r"\w+", members))
            lines[-1] += f"\n    options:\n      members:\n{listed}"
    return "\n\n".join(lines)
