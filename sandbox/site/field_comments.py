"""The comments of fields as their docstrings: mkdocstrings loads this extension of its parser."""

import functools
from pathlib import Path
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """A field's comment, on its line or above it, explains it on the page on Python."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Give an attribute that has no docstring its comment as one."""
        in_class = attr.parent and attr.parent.is_class
        if attr.docstring or not in_class or not attr.lineno or not isinstance(attr.filepath, Path):
            return
        lines = _lines(attr.filepath)
        _, _, text = lines[attr.lineno - 1].partition("  # ")
        if not text:
            above = [line.strip() for line in lines[: attr.lineno - 1]]
            while above and above[-1].startswith("# ") and not above[-1].startswith("# --"):
                text = f"{above.pop()[2:]} {text}"
        if text:
            attr.docstring = griffe.Docstring(text.strip(), parent=attr)


@functools.cache
def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
