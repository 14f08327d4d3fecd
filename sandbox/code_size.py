"""Counts what a reader of the code must know: files and lines, and what one module imports.

    python sandbox/code_size.py                                   # each package
    python sandbox/code_size.py impala_mm.algorithms.impala.algorithm  # what this module imports

A line of code is one that is no comment, docstring or blank. Imports are those within `impala_mm`,
`nets` and `launcher`, with theirs, also those within functions.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("impala_mm", "nets", "launcher")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def count_lines(path: Path) -> int:
    """Return the number of lines of code in a file."""
    source = path.read_text()
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def find_file(module: str) -> Path | None:
    """Return the file of a module of the project, or None."""
    path = ROOT / module.replace(".", "/")
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of the project that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # A name is a module of the package, or something that the module defines.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if find_file(name) else node.module for name in names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in LIBRARIES)


def closure(module: str) -> set[Path]:
    """Return the files of a module and of all that it imports."""
    waiting, files = [module], set[Path]()
    while waiting:
        name = waiting.pop()
        path = find_file(name)
        if path and path not in files:
            files.add(path)
            waiting += imported(path)
    return files


def _say(name: str, files: set[Path]) -> None:
    lines = sum(map(count_lines, files))
    small = sum(len(path.read_text().splitlines()) < 100 for path in files)
    print(f"{name:32} {len(files):4} files, {small:3} of fewer than 100 lines {lines:7,} of code")


def main(modules: list[str]) -> None:
    """Print the counts of the packages, or of what the modules import."""
    for module in modules:
        if not find_file(module):
            sys.exit(f"{module}: no module of {', '.join(LIBRARIES)}")
        _say(module, closure(module))
    if modules:
        return
    everything = set[Path]()
    for library in LIBRARIES:
        for folder in sorted({library, *(p.parent.name for p in (ROOT / library).glob("*/*.py"))}):
            inside = folder != library
            place = ROOT / library / folder if inside else ROOT / library
            files = set(place.rglob("*.py") if inside else place.glob("*.py"))
            everything |= files
            _say(f"{library}.{folder}" if inside else library, files)
    _say("all", everything)


if __name__ == "__main__":
    main(sys.argv[1:])
