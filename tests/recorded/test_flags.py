"""The flags, their groups, bounds and defaults are those that `flags.py` has recorded."""

import json

from tests.recorded import flags


def test_flags_and_defaults_are_those_that_were_recorded():
    recorded, now = json.loads(flags.PATH.read_text()), json.loads(flags.as_text(flags.current()))
    assert recorded.keys() == now.keys()
    for group in recorded:
        assert recorded[group] == now[group], f"flags of {group}"
