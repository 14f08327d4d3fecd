"""The command `results` in the test's own process, which has loaded what it needs."""

import sys

import pytest
from processes import ROOT


@pytest.fixture
def results(monkeypatch, capsys):
    """Return a function that runs `results` with words, and returns (exit code, output)."""
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])  # the program replaces the first
    from sandbox.results import __main__ as program  # noqa: PLC0415 - after the change of the path

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["results", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            program.main()
        except SystemExit as ended:
            code = ended.code or 0
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call
