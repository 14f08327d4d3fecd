"""The metrics that a run writes, as metrics.jsonl and for TensorBoard."""

import dataclasses
import json
import resource
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from impala_mm.config.settings import Config
from impala_mm.records.metric_descriptions import format_description
from impala_mm.records.metrics_writer import MetricsWriter


def test_what_hosts_use_is_appended_and_a_file_that_refuses_it_costs_only_the_row(tmp_path):
    writer = MetricsWriter(tmp_path, (said := []).append)
    began = round(time.time(), 1)
    writer.write_hosts({"frames": 1.0, "cores/a": 0.5})
    writer.write_hosts({"frames": 2.0, "cores/a": 1.5})
    rows = [json.loads(line) for line in (tmp_path / "hosts.jsonl").read_text().splitlines()]
    assert [row["cores/a"] for row in rows] == [0.5, 1.5]
    assert began <= rows[0]["time"] <= round(time.time(), 1)
    (tmp_path / "hosts.jsonl").unlink()
    (tmp_path / "hosts.jsonl").symlink_to("/dev/full")
    writer.write_hosts({"frames": 3.0})
    assert said == [], "the next row of metrics finds the disk full, too, and says it"


def test_games_are_appended_in_whole_lines_and_a_full_disk_costs_only_new_ones(tmp_path):
    writer, games = MetricsWriter(tmp_path, print), [{"return": float(i)} for i in range(100)]
    writer.write_games(games[:2])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        writer.write_games(games)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.write_games(games[2:3])
    lines = (tmp_path / "games.jsonl").read_text().splitlines()
    assert [json.loads(line)["return"] for line in lines] == [0.0, 1.0, 2.0]


def _events(logdir):
    """Read the events with TensorBoard's own reader."""
    events = EventAccumulator(str(logdir / "events"), size_guidance={"tensors": 0})
    events.Reload()
    return events


def test_tensorboard_reads_on_after_a_disk_that_was_full_for_a_while(tmp_path):
    writer = MetricsWriter(tmp_path, (said := []).append)
    row = {f"number {i}": 1.0 for i in range(30)}
    writer.write(row | {"frames": 1.0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = max(path.stat().st_size for path in (tmp_path / "events").iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (written + 100, limits[1]))
    try:
        writer.write(row | {"frames": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.write(row | {"frames": 3.0})
    writer.write(row | {"frames": 4.0})
    assert len(said) == 2
    assert "(File too large)" in said[0]
    # The file's names end in a count, by which the 10th that a process writes in a second is
    # read before the 9th.
    assert sorted(event.step for event in _events(tmp_path).Tensors("number 0"))[-2:] == [3, 4]


def test_tensorboard_gets_all_settings_changed_ones_first_where_training_starts(tmp_path):
    of_impala = Config.of_algorithm("impala")
    settings = dataclasses.asdict(of_impala(level_name="catch", on_event="a | b", max_seconds=1e3))
    writer = MetricsWriter(tmp_path, print)
    writer.write_settings(settings, frames=640.0)
    writer.write({"frames": 1280.0, "grad_norm": 1.0})
    events = _events(tmp_path)
    (event,) = events.Tensors("settings")
    assert event.step == 640
    assert events.SummaryMetadata("settings").plugin_data.plugin_name == "text"
    rows = event.tensor_proto.string_val[0].decode().split("\n")[2:]
    assert len(rows) == len(settings) - 3  # config, origins and show_config
    assert set(rows[:3]) == {
        "| **--level_name** | **catch** | **CartPole-v1** |",
        "| **--on_event** | **a \\| b** |  |",
        "| **--max_seconds** | **1000** | **inf** |",
    }
    assert "| --batch_size | 8 | 8 |" in rows[3:]
    assert not any("**" in row for row in rows[3:])


def test_tensorboard_describes_a_metric_once(tmp_path):
    """It reads the first description; one with each value would be most of the file."""
    writer = MetricsWriter(tmp_path, print)
    for frames in (1.0, 2.0, 3.0):
        writer.write({"frames": frames, "off_policyness": 0.5, "my_own": 1.0})
    events = _events(tmp_path)
    assert [event.step for event in events.Tensors("off_policyness")] == [1, 2, 3]
    said = events.SummaryMetadata("off_policyness").summary_description
    assert said == format_description("off_policyness") != ""
    assert events.SummaryMetadata("my_own").summary_description == ""
    (path,) = (tmp_path / "events").iterdir()
    assert path.read_bytes().count(said.encode()) == 1
