"""What a run says of itself, row by row."""

import json
import sys

from impala_mm.records.metrics_writer import MetricsWriter


def test_a_long_run_holds_nothing_of_the_rows_that_it_wrote(tmp_path):
    """A million of them is a month's."""
    chronicle = MetricsWriter(tmp_path, print)

    def write(rows):
        for row in rows:
            numbers = {f"number {i}": row + i / 7 for i in range(30)}
            chronicle.write({"frames": 160.0 * row, "verdict": f"the {row}th", **numbers})

    write(range(50))
    before = sys.getallocatedblocks()
    write(range(50, 250))
    assert sys.getallocatedblocks() - before < 200 * 30 / 10
    kept = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["frames"] for row in kept] == [160.0 * row for row in range(250)]
    assert kept[-1]["number 7"] == 250.0
