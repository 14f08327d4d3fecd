"""Names that users' code imports by their old places: they work for one version, and say so."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("film", "evaluation.game_video", ["record_game"]),
        ("trajectory", "data.trajectory", ["Batch", "Entry", "Unroll", "UnrollSpec"]),
        ("optimizers", "algorithms.optimizers", ["Adam", "RMSProp", "make"]),
        ("algorithms.value_targets", "algorithms.value_units", ["errors", "make_unit"]),
    ],
)
def test_a_module_by_its_old_name_is_the_new_one(old, new, names):
    sys.modules.pop(f"impala_mm.{old}", None)
    with pytest.warns(FutureWarning, match=rf"impala_mm\.{old} is now impala_mm\.{new}[;:]"):
        module = importlib.import_module(f"impala_mm.{old}")
    now = importlib.import_module(f"impala_mm.{new}")
    for name in names:
        assert getattr(module, name) is getattr(now, name)


def test_what_algorithms_imported_from_their_package_is_found_where_it_is_now():
    from impala_mm import algorithms  # noqa: PLC0415
    from impala_mm.algorithms.interface import PolicyOutput, entry_spec  # noqa: PLC0415
    from impala_mm.data.variables import Variables  # noqa: PLC0415

    for old, new in (("Judgement", PolicyOutput), ("entry_spec", entry_spec)):
        with pytest.warns(FutureWarning, match=rf"{old} is now impala_mm\.algorithms\.interface\."):
            assert getattr(algorithms, old) is new
    with pytest.warns(FutureWarning, match=r"is now impala_mm\.data\.variables\.Variables;"):
        assert algorithms.Variables is Variables
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        algorithms.Nothing  # noqa: B018


def test_a_mistake_of_the_users_is_found_where_it_was():
    from impala_mm.config import errors, messages  # noqa: PLC0415

    with pytest.warns(FutureWarning, match=r"UserMistake is now impala_mm\.config\.errors\.UserM"):
        assert messages.UserMistake is errors.UserMistake
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        messages.Nothing  # noqa: B018
