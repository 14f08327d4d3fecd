"""What a process knows of the program that started it."""

import pytest

from impala_mm.runtime import starter


@pytest.mark.parametrize(("text", "known"), [("3", 3), ("0", None), ("", None), ("x", None)])
def test_the_program_that_starts_actors_says_how_many(monkeypatch, text, known):
    monkeypatch.setenv("IMPALA_MM_ACTORS", text)
    assert starter.num_actors() == known
