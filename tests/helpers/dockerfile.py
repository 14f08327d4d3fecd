"""The files and the entry point of an image, read from its Dockerfile without an engine.

Stages, COPY, WORKDIR and ENTRYPOINT are understood; the effects of RUN and of base images are not.
"""

import fnmatch
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from processes import ROOT


class Instruction(NamedTuple):
    """One instruction, with its continuation lines joined."""

    name: str  # such as "COPY"
    text: str


def instructions(path: Path) -> list[Instruction]:
    """Return the instructions of a Dockerfile, without comments."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n", "", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def stages(path: Path) -> dict[str, list[Instruction]]:
    """Return the instructions of each stage by its name, including FROM; the last stage is ""."""
    found: dict[str, list[Instruction]] = {}
    name = ""
    for each in instructions(path):
        if each.name == "FROM":
            _, _, name = each.text.partition(" AS ")
            found[name] = []
        if found:
            found[name].append(each)
    return found


def last(path: Path, name: str) -> str:
    """Return the text of the last such instruction in the last stage."""
    return [each.text for each in stages(path)[""] if each.name == name][-1]


def entrypoint(path: Path) -> list[str]:
    """Return the command that a container starts, before its own arguments."""
    return json.loads(last(path, "ENTRYPOINT"))


def assemble(path: Path, folder: Path, stage: str = "") -> Path:
    """Copy the files of a stage into `folder`, as in the image's /, and return `folder`."""
    copied = stages(path)
    workdir = Path("/")
    for name, text in copied[stage]:
        words = shlex.split(text)
        if name == "WORKDIR":
            workdir = workdir / text
        if name != "COPY":
            continue
        root, source = ROOT, [word for word in words if not word.startswith("--")][:-1]
        if words[0].startswith("--from="):
            if (origin := words[0].removeprefix("--from=")) not in copied:
                continue
            root = assemble(path, folder.with_name(f"{folder.name}-{origin}"), origin)
        for each in source:
            _copy(root / each.lstrip("/"), folder, workdir / words[-1], words[-1].endswith("/"))
    return folder


def _copy(source: Path, folder: Path, target: Path, into: bool) -> None:
    """Copy a file, or the contents of a folder as COPY does, without ignored files."""
    there = folder / str(target).lstrip("/")
    ignored = _ignored(source)
    if source.is_file():
        there = there / source.name if into or there.is_dir() else there
        assert source not in ignored, f"{source} is copied, but .dockerignore excludes it"
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, there)
        return
    assert source.is_dir(), f"{source} is copied, but does not exist"
    for file in sorted(source.rglob("*")):
        if "__pycache__" in file.parts:  # other tests' processes write there at this moment
            continue
        if file.is_file() and file not in ignored:
            copy = there / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


def _ignored(source: Path) -> set[Path]:
    if not source.is_relative_to(ROOT):  # it comes from another stage
        return set()
    files = [source] if source.is_file() else source.rglob("*")
    return {file for file in files if ignored(str(file.relative_to(ROOT)))}


def ignored(name: str) -> bool:
    """Return whether .dockerignore excludes a file; its last matching line decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().split("\n"):
        pattern = line.removeprefix("!").removeprefix("**/")
        if not pattern or line.startswith("#"):
            continue
        parts = Path(name).parts
        above = ["/".join(parts[:i]) for i in range(1, len(parts) + 1)]
        names = parts if "**/" in line else above
        if any(fnmatch.fnmatch(each, pattern) for each in names):
            out = not line.startswith("!")
    return out
