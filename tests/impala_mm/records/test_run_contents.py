"""What the report and the dashboard read of a run's folder."""

import json

from impala_mm.records.run_contents import read_checkpoints


def test_of_equal_checkpoints_the_newest_is_the_best_as_it_is_for_whoever_loads_one(tmp_path):
    for updates, mean in ((1, 400.0), (2, 500.0), (3, 500.0), (4, None)):
        folder = tmp_path / "checkpoints" / f"{updates:010d}"
        folder.mkdir(parents=True)
        (folder / "about.json").write_text(json.dumps({"episode_return": mean}))
    assert [each["best"] for each in read_checkpoints(tmp_path)] == [False, False, True, False]
