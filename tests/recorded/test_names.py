"""Variables have in checkpoints the names that were recorded: earlier runs are read by them."""

from tests.recorded import names


def test_variables_have_the_names_by_which_checkpoints_of_this_version_are_read():
    recorded = names.NAMES.read_text().splitlines()
    assert names.of_all() == recorded, (
        "add former names to _RENAMED in impala_mm/records/saved_variables.py, and record the new "
        "ones: python -m tests.recorded.names"
    )
