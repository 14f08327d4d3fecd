"""Tests of `results report`: the page is self-contained, whatever the folder contains."""

import base64
import html.parser
import json
import re
import sys

import numpy as np
import pytest
from processes import ROOT, run

from impala_mm.records.run_contents import Panel
from sandbox.results import report, runs, summary
from tests.sandbox.test_plot import recorded, row, write

EVIL = "<script>alert('x')</script>&\""


class _Page(html.parser.HTMLParser):
    """A parser that collects what a browser would load and show."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.open, self.scripts, self.words = [], [], 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href")]
        self.scripts += tag == "script"
        if tag not in ("meta", "input", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)


def _page(folder):
    text = report.render_page(runs.read_run(folder))
    page = _Page(text)
    assert not page.open, "every tag is closed"
    return text, page, " ".join(page.words)


@pytest.fixture
def folder(tmp_path):
    """Write a run's folder that contains every kind of file."""
    folder = recorded(
        tmp_path / "a run", "pong", 3, level_name="PongNoFrameskip-v4", stop_at_return=20.0
    )
    (folder / "evaluations.jsonl").write_text(
        json.dumps({"time": "2026-11-23T21:17:04+0000", "checkpoint": "/x/0000000251",
                    "frames": 36144.0,
                    "level": "Pong", "returns": [18, 20.0], "lengths": [900, 1100],
                    "deterministic": True}) + "\n"
        + '{"level": 5}\n[1]\n{"half'
    )  # fmt: skip
    (folder / "starts.jsonl").write_text(
        json.dumps({"time": "2026-11-23T21:16:47+0000", "command": f"experiment.py {EVIL}",
                    "host": "gpu7",
                    "machine": "8 cores", "versions": {"python": "3.11.7"},
                    "revision": "abc-dirty", "learners": ["a:1", "b:1"], "settings": {}}) + "\n"
    )  # fmt: skip
    for update, value in ((100, 1.5), (200, None), (300, 19.25)):
        path = folder / "checkpoints" / f"{update:010d}"
        path.mkdir(parents=True)
        about = {"updates": update, "frames": 640.0 * update, "episode_return": value}
        (path / "about.json").write_text(json.dumps(about | {"milestone": update == 100}))
    (folder / "checkpoints" / "0000000400").mkdir()
    (folder / "checkpoints" / "0000000400" / "about.json").write_text("{cut")
    return folder


def test_the_page_has_all_that_the_folder_tells_and_loads_nothing(folder):
    text, page, words = _page(folder)
    for part in ("Curves", "Evaluations", "Checkpoints", "Starts", "Settings", "Files"):
        assert part in words
    for told in ("19.07", "19.28", "19.00 over 2 complete games", "18 to 20", "gpu7", "3.11.7"):
        assert told in words
    assert "did not reach its goal" in words
    assert re.search(r"0000000300 +300 +192,000 +19\.25 +- +- +best", words)
    assert re.search(r"0000000100 +100 +64,000 +1\.50 +- +- +milestone", words)
    assert "--stop_at_return 20 inf" in words
    assert f"--config='{folder}/settings.json' --logdir='{folder}'" in words
    assert page.loads == []
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\(", text)
    static = ROOT / "launcher" / "dashboard" / "static"
    for name in ("charts.js", "charts.css", "uplot/LICENSE"):
        assert (static / name).read_text() in text


def test_what_a_folder_says_is_text_and_never_markup(folder, tmp_path):
    evil = tmp_path / "<b>bold<"
    folder.rename(evil)
    settings = json.loads((evil / "settings.json").read_text())
    (evil / "settings.json").write_text(json.dumps(settings | {"level_name": EVIL, EVIL: EVIL}))
    (evil / "evaluations.jsonl").write_text(json.dumps({"level": EVIL, "time": EVIL}) + "\n")
    _, plain, _ = _page(recorded(tmp_path / "plain", "pong", 1, level_name="x"))
    text, page, words = _page(evil)
    assert EVIL not in text
    assert "<b>bold" not in text
    assert EVIL in words
    assert page.scripts == plain.scripts


def test_videos_of_this_folder_and_others_are_in_the_page(folder, tmp_path):
    """Small ones are; large ones stay beside it. What is gone or no video is left out."""
    (folder / "videos").mkdir()
    (folder / "videos" / "a.mp4").write_bytes(b"own")
    (outside := tmp_path / "all videos" / "b.mp4").parent.mkdir()
    outside.write_bytes(b"outside")
    large = outside.with_name("c & 1.mp4")
    with large.open("wb") as file:
        file.truncate(6 * 2**20)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    named = ["videos/a.mp4", outside, large, outside, tmp_path / "gone.mp4", secret, folder]
    rows = "".join(json.dumps({"level": "x", "video": str(path)}) + "\n" for path in named)
    (folder / "evaluations.jsonl").write_text(rows)
    _, page, _ = _page(folder)
    assert page.loads == [
        *(
            "data:video/mp4;base64," + base64.b64encode(text).decode()
            for text in (b"own", b"outside")
        ),
        "../all%20videos/c%20%26%201.mp4",
    ]


def test_a_folder_with_nothing_but_rows_makes_a_page(tmp_path):
    write(tmp_path, [{"frames": 100.0, "seconds": 2.0}])
    assert "Fewer than 100 games ended" in _page(tmp_path)[2]
    values = {"q/value": 2.0, "q/error": 0.5, "epsilon": 0.1}
    rows = [row(n, n) | {"games": 40.0} | values for n in (0, 5000, 3000, 6000)]
    write(tmp_path, rows)
    _, _, words = _page(tmp_path)
    assert "mean return of the last 40 games" in words
    assert "resumed at 3k frames. 1 row was replaced" in words
    for title in ("Value of actions", "Error of actions' values", "Random actions"):
        assert title in words
    for absent in ("Loss, policy", "best mean return", "nan", "Evaluations", "Settings"):
        assert absent not in words


def test_the_sentences_say_what_bound_it_and_whether_it_still_learnt(tmp_path):
    more = {"frames_per_second": 100.0, "wait_share": 0.5, "queue_fill": 0.0, "train_share": 0.4}

    def said(most, **more):
        write(tmp_path, [row(i, i, value=min(i, most)) | more for i in range(100)])
        found = runs.read_run(tmp_path)
        return " ".join(summary.summarise(found)), summary.describe_late_bottleneck(found)

    rising, bottleneck = said(100, **more, verdict="of that row alone")
    assert "still rising: +5.00" in rising
    assert "actors (the learner waits 50%" in bottleneck
    assert "2.0 times as many actors" in bottleneck
    assert said(100, **more, actors=0)[1] == "", "it has no actors to add to"
    level, bottleneck = said(50)
    assert "levelled off" in level
    assert bottleneck == ""


def _curves(text):
    """Return the data of all curves in a page."""
    found = re.findall(r'<div class="curve"><script type="application/json">(.*?)</script>', text)
    return [json.loads(each) for each in found]


def test_a_curve_has_its_values_bands_and_a_sentence_for_readers_without_scripts(tmp_path):
    write(tmp_path, [row(1000.0 * i, 10.0 * i, value=2.5 * i) for i in range(5)])
    text, _, words = _page(tmp_path)
    of_frames, of_time = (c for c in _curves(text) if c["title"] == "Mean return")
    assert (of_frames["x"], of_frames["isTime"]) == ([0, 1000, 2000, 3000, 4000], False)
    assert (of_time["x"], of_time["isTime"]) == ([0, 10, 20, 30, 40], True)
    assert of_frames["mean"] == [0, 2.5, 5, 7.5, 10]
    assert "low" not in of_frames
    assert words.count("Mean return: 0 at the start, 10 at the end") == 2
    x = np.arange(3.0)
    curve = runs.Curve(x, x, x - 1, x + np.array([1.0, np.nan, 1.0]))
    (data,) = _curves(report.render_chart(curve, Panel("a", "a", "</script>", "u"), False))
    assert (data["title"], data["low"], data["high"]) == ("</script>", [-1, 0, 1], [1, None, 3])


def test_the_command_writes_the_page_and_replaces_the_one_before(folder):
    for _ in range(2):
        code, printed = run(sys.executable, ROOT / "sandbox" / "results", "report", folder)
        assert code == 0, printed
        assert f"wrote {folder / 'report.html'}" in printed
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert not (folder / "report.html.part").exists()
