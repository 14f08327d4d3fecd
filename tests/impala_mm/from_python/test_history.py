"""The rows of a run, as Python reads them."""

import json

from impala_mm.from_python.run import Run


def test_a_history_has_each_number_of_frames_once_and_what_a_crash_repeated_once(tmp_path):
    (tmp_path / "program.py").touch()
    run = Run(tmp_path / "program.py", [], tmp_path, progress=False).wait(60)
    assert run.history() == []
    counts = [(0, 1), (0, 2), (100, 3), (200, 5), (100, 4), (150, 6)]
    rows = [{"frames": f, "seconds": s, "row": i} for i, (f, s) in enumerate(counts)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"frames": 1')
    assert [row["row"] for row in run.history()] == [1, 4, 5]
    assert [*run.metrics()["row"]] == [0, 1, 2, 4, 5]
