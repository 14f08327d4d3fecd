"""Each message that sandbox/troubleshooting.md quotes is a message of the source."""

import ast
import re

from processes import ROOT

PAGE = (ROOT / "sandbox" / "troubleshooting.md").read_text()
SOURCES = ("impala_mm", "launcher", "nets", "docker")
HOLE = "\0"  # stands for the values in an f-string


def _literal(node):
    """Return the text of an f-string or a string, values as HOLE; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else HOLE for part in node.values
        )
    return None


def literals(tree):
    """Return the strings of a module, without its docstrings.

    Python itself joins strings that follow each other, so line breaks in the source do not matter.
    The parts of an f-string are not listed again by themselves.
    """
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if isinstance(node.body[0], ast.Expr):
                left_out.add(node.body[0].value)
        elif isinstance(node, ast.JoinedStr):
            left_out |= {part for part in node.values if isinstance(part, ast.Constant)}
    found = [_literal(node) for node in ast.walk(tree) if node not in left_out]
    return [" ".join(text.split()) for text in found if text and not text.isspace()]


def quotes(page):
    """Return the messages that a page quotes: bold code at the start of a line, or after it."""
    lines = [line for line in page.splitlines() if line.startswith("**`")]
    return [quote for line in lines for quote in re.findall(r"\*\*`(.+?)`\*\*", line)]


def fixed_parts(quote):
    """Return the parts of a message that do not vary: what is between its `...`."""
    parts = [" ".join(part.split()) for part in quote.split("...")]
    return [part for part in parts if re.search(r"\w", part)]


def is_said(quote, by_file):
    """Return whether one file has each fixed part of the message in one of its strings."""
    parts = fixed_parts(quote)
    return any(all(any(part in text for text in texts) for part in parts) for texts in by_file)


def test_each_quoted_message_is_a_message_of_the_source():
    paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    by_file = [literals(ast.parse(path.read_text())) for path in paths]
    quoted = quotes(PAGE)
    assert len(set(quoted)) == len(quoted) >= 20
    for quote in quoted:
        assert sum(map(len, fixed_parts(quote))) >= 10, f"too little of it is fixed: {quote}"
    gone = [quote for quote in quoted if not is_said(quote, by_file)]
    assert not gone, "no message of ours any more:\n" + "\n".join(gone)
    assert not is_said("--logdir=...: process ... is reading from it", by_file)


def test_each_entry_says_what_to_do():
    lines = PAGE.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("**`"):
            assert lines[number + 1] == "", line
            assert re.match(r"[A-Z`]", lines[number + 2]), f"nothing explains {line}"
