"""A registry: what is registered is found by its name, and what is not is a sentence."""

import sys

import pytest

from impala_mm.config.errors import UserMistake
from impala_mm.config.registry import Registry


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A registry of functions, and modules to which places may lead."""
    (tmp_path / "of_theirs.py").write_text("def twin():\n    return 2\n")
    (tmp_path / "broken.py").write_text("None.nosuch\n")
    (tmp_path / "lacking.py").write_text("import a_module_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry("network", {"one": lambda: 1})
    for name in ("of_theirs", "broken", "lacking"):
        sys.modules.pop(name, None)


def test_a_place_is_imported_when_it_is_first_asked_for(registry):
    registry.register("twin", "of_theirs:twin")
    assert (registry.names, "of_theirs" in sys.modules) == (["one", "twin"], False)
    assert registry["twin"]() == 2
    registry.register("twin", "of_theirs:twin")  # by a module that is imported again
    assert registry["twin"]() == 2

    with pytest.raises(ValueError, match="network twin already, of_theirs:twin"):
        registry.register("twin", "others:twin")


def test_a_decorator_registers_what_it_stands_above(registry):
    @registry.register("three")
    def three():
        return 3

    assert registry["three"] is three


def test_an_unknown_name_is_a_sentence_with_the_nearest_and_all(registry):
    with pytest.raises(LookupError, match=r"no network 'on'; did you mean one"):
        registry["on"]


@pytest.mark.parametrize("place", ["of_theirs:twins", "nowhere:twin"])
def test_a_place_where_nothing_is_is_a_sentence(registry, place):
    registry.register("twin", place)
    with pytest.raises(UserMistake, match=place):
        registry["twin"]


@pytest.mark.parametrize(
    ("module", "error"), [("broken", AttributeError), ("lacking", ModuleNotFoundError)]
)
def test_what_a_module_itself_raises_is_not_taken_for_a_missing_place(registry, module, error):
    registry.register("twin", f"{module}:twin")
    with pytest.raises(error):
        registry["twin"]
