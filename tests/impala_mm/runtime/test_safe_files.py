"""What a run writes as JSON can be read by every program, and infinities survive."""

import dataclasses
import json
import math

import pytest

from impala_mm.config.flags import differences
from impala_mm.config.settings import Config
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime.safe_files import from_json, to_json
from launcher.supervise.json_files import write_json


def parse_strictly(text):
    """Parse JSON as a browser and jq do, which know no Infinity and no NaN."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_infinities_are_written_as_flags_are_and_nan_as_a_missing_number():
    value = {"limits": [math.inf, -math.inf, 1.5], "loss": math.nan, "text": "infinite"}
    written = to_json(value)
    read = {"limits": ["inf", "-inf", 1.5], "loss": None, "text": "infinite"}
    assert parse_strictly(written) == read
    assert from_json(written) == value | {"loss": None}
    # What earlier versions wrote is read as before.
    value = from_json('{"stop_at_return": Infinity, "max_seconds": [-Infinity], "loss": NaN}')
    assert (value["stop_at_return"], value["max_seconds"]) == (math.inf, [-math.inf])
    assert math.isnan(value["loss"])


def test_the_settings_of_a_run_without_limits_are_standard_json(tmp_path):
    config = Config(logdir=str(tmp_path), max_seconds=math.inf)
    folder = RunFolder(config)
    folder.write_start(config, ["here:8001"], frames=0.0)
    text = (tmp_path / "settings.json").read_text()
    assert parse_strictly(text)["max_seconds"] == "inf"
    assert from_json(text)["max_seconds"] == math.inf
    assert parse_strictly((tmp_path / "starts.jsonl").read_text())["settings"]["learning_rate"]


def test_a_flag_whose_text_reads_as_an_infinity_has_not_changed_in_a_resumed_run():
    config = Config(level_name="inf", max_seconds=math.inf)
    recorded = from_json(to_json(dataclasses.asdict(config)))
    assert differences(config, recorded) == []
    changed = dataclasses.replace(config, level_name="catch", layer_norm=True)
    assert [each.partition(" ")[0] for each in differences(changed, recorded)] == [
        "--level_name=catch",
        "--layer_norm=true",
    ]


def test_a_state_file_with_a_number_that_json_lacks_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "state.json", {"frames_per_second": math.inf})
