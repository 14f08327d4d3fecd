"""The notebook, run as a whole in a kernel, as a user does."""

import os
import shutil

import nbformat
import pytest
from nbclient import NotebookClient
from processes import ROOT

pytestmark = pytest.mark.slow
NOTEBOOK = ROOT / "sandbox" / "start.ipynb"


def test_every_cell_runs_and_says_what_the_text_promises(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "outputs are not committed"
    NotebookClient(
        book, timeout=280, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    shown = {i: _text(cell) for i, cell in enumerate(book.cells) if cell.cell_type == "code"}
    said = "\n".join(shown.values())
    assert "Error" not in said
    assert "reached 60,000 frames" in said
    assert "array([0, 1]" in said, "the signs of -0.5 and 0.5"
    last = list(shown.values())[-1]
    assert float(last) == 500, "the policy of the package"
    assert list((tmp_path / "videos").glob("*.mp4"))
    assert (tmp_path / "runs").is_dir()
    shutil.rmtree(tmp_path / "runs")
    assert not [p for p in os.listdir(ROOT / "sandbox") if p in {"runs", "videos"}]


def _text(cell):
    """Return what a cell printed and showed, as text."""
    shown = (
        each.get("text") or each.get("data", {}).get("text/plain", "") for each in cell.outputs
    )
    return "".join(shown)
