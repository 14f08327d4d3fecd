"""The dashboard in a real browser, beside real runs, and read by a real Prometheus server."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import pytest
from cluster import FRONTEND
from dashboards import shown, wait_until
from far_cluster import FarCluster
from large_run import LargeRun
from processes import EXPERIMENT, ROOT, run
from rows import read_rows

pytestmark = pytest.mark.slow
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e&\"'"


@pytest.fixture(autouse=True)
def no_other_runs(monkeypatch, tmp_path):
    """Show no run of this machine but those of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # of runs of frontends
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket's address
        monkeypatch.setenv("TMPDIR", folder)  # of those in the foreground
        yield


@pytest.fixture
def large(tmp_path):
    made = LargeRun("night", tmp_path / "runs" / "pong")
    made.write_rows(1, 200)
    made.write_hosts(1, 200)
    return made


@pytest.fixture
def dashboard(large, tmp_path):
    with shown(f"--logdir={tmp_path / 'runs'}", "--tmux_sess=night") as found:
        yield found


@pytest.fixture
def living(large):
    """Change the files of the run every two seconds, as its processes would."""
    ends, index = threading.Event(), 200

    def live():
        nonlocal index
        while not ends.wait(2.0):
            large.advance()
            large.write_rows(index, index + 1)
            if index % 5 == 0:
                large.write_hosts(index, index + 1)
            index += 1

    thread = threading.Thread(target=live)
    thread.start()
    yield large
    ends.set()
    thread.join()


ROW = ".processes tbody tr"


def _texts(page, selector):
    return page.eval_on_selector_all(selector, "nodes => nodes.map((node) => node.textContent)")


def test_the_page_shows_what_status_and_metrics_have_and_its_rows_scroll_filter_and_sort(
    large, dashboard, browser
):
    page = browser.open(dashboard.address, f"{ROW}:nth-child(300)")
    code, printed = run(
        sys.executable, ROOT / "run_experiment_mm_raw.py", "--status", "--json", "--tmux_sess=night"
    )
    assert code == 0, printed
    known, row = json.loads(printed), large.row(199)
    rows = page.eval_on_selector_all(
        ROW, "rows => rows.map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert len(rows) == len(known["processes"]) == 300
    for cells, process in zip(rows, known["processes"], strict=True):
        assert cells[:3] == [process["name"], process["host"], process["state"]]
        assert cells[4] == f"{process['frames_per_second']:.0f}"
        assert cells[5:8] == [f"{process['cpu']}%", f"{process['memory']} MiB", "0"]
        assert cells[8] == process["last"]
    tiles = dict(zip(_texts(page, ".tile span"), _texts(page, ".tile b"), strict=True))
    assert tiles["mean return"] == f"{row['episode_return']:.2f}"
    assert tiles["policy lag"] == f"{row['policy_lag']:.1f}"
    assert tiles["environment frames"] == "11.14M"
    assert page.text_content(".verdict") == known["verdict"]
    assert page.text_content("h1") == "PongNoFrameskip-v4 · night"
    shown_keys = page.eval_on_selector_all(
        ".part-curves .chart", "all => all.map((c) => c.dataset.key)"
    )
    assert shown_keys[:3] == ["episode_return", "frames_per_second", "policy_lag"]
    assert len(shown_keys) == 12, "a panel for each metric that the run has"
    for key in shown_keys:
        value = page.text_content(f".chart[data-key='{key}'] .value")
        number = float(re.sub("[kMG]$", "", value)) * {"k": 1e3, "M": 1e6}.get(value[-1], 1)
        assert number == pytest.approx(row[key], rel=1e-4, abs=1e-9), key
    assert "bottleneck" in page.text_content(".stage.held")
    assert page.text_content(".stage.held h3") == "Actors"
    # The pointer moves by keys.
    chart = page.locator(".chart[data-key=episode_return]")
    chart.locator(".plot").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    row = large.row(199 - 3)
    assert float(chart.locator(".value").text_content()) == pytest.approx(
        row["episode_return"], rel=1e-4
    )
    assert chart.locator(".place").text_content() == f"at {row['frames'] / 1e6:.4g}M frames"
    page.evaluate("document.querySelector('.table.tall').scrollTo(0, 1e6)")
    assert page.evaluate(
        "(() => { const box = document.querySelector('.table.tall').getBoundingClientRect(),"
        " row = document.querySelector('.processes tbody tr:last-child').getBoundingClientRect();"
        " return row.bottom <= box.bottom + 1 && row.height > 10; })()"
    )
    page.fill(".part-processes input", "node3")
    assert len(_texts(page, ROW)) == 50
    page.fill(".part-processes input", "")
    page.click("th button:has-text('memory')")
    page.click("th button:has-text('memory')")
    memory = _texts(page, f"{ROW} td:nth-child(7)")
    assert memory[0] == "459 MiB"
    assert memory == sorted(memory, reverse=True)
    assert page.get_attribute("th:nth-child(7)", "aria-sort") == "descending"


def test_new_rows_and_states_appear_by_themselves(living, dashboard, browser):
    page = browser.open(dashboard.address, f"{ROW}:nth-child(300)")
    before = page.text_content(".tile:nth-child(2) b")
    line = page.text_content(f"{ROW}[data-name=actor-5] .last")
    wait_until(lambda: page.text_content(".tile:nth-child(2) b") != before, 10, "a new row")
    wait_until(
        lambda: page.text_content(f"{ROW}[data-name=actor-5] .last") != line, 10, "a new line"
    )
    living.write_state("actor-9", state="failed", code=1)
    page.wait_for_selector(f"{ROW}.bad[data-name=actor-9]", timeout=10_000)
    assert page.get_attribute(f"{ROW}:first-child", "data-name") == "actor-9", "it comes first"


def test_a_log_is_followed_searched_and_read_backwards(large, dashboard, browser):
    log = large.logdir / "learners.log"
    log.write_text("".join(f"line {i}\n" for i in range(20_000)))
    page = browser.open(dashboard.address, ".log div")
    assert _texts(page, ".log div")[-1] == "line 19999"
    with log.open("a") as file:
        file.write("\x1b[31mnewest\x1b[0m\n")
    wait_until(lambda: _texts(page, ".log div")[-1] == "newest", 10, "the line that was appended")
    page.click("text=Earlier lines")
    wait_until(lambda: len(_texts(page, ".log div")) == 3000, 10, "earlier lines, bounded")
    page.fill(".part-logs input[type=search]", "LINE 1999")
    page.keyboard.press("Enter")
    wait_until(lambda: len(_texts(page, ".log mark")) == 11, 10, "the lines that were searched")
    assert _texts(page, ".log mark")[0] == "line 1999"


def test_the_page_is_used_by_keyboard_alone(large, dashboard, browser):
    (large.logdir / "actor-0.log").write_text("of actor 0\n")
    (large.logdir / "learners.log").write_text("of the learners\n")
    page = browser.open(dashboard.address, f"{ROW}:nth-child(300)")
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        about = page.evaluate(
            "(() => { const n = document.activeElement, s = getComputedStyle(n);"
            " return [n.tagName, n.textContent.slice(0, 30), s.outlineStyle, s.outlineWidth]; })()"
        )
        assert about[2] != "none", f"{about} shows that it has the focus"
        reached.append(about[:2])
        if about[1] == "actor-0":
            break
    assert reached[0] == ["A", "Skip to the content"]
    assert ["SELECT", "over framesover training time"] in reached
    page.keyboard.press("Enter")
    wait_until(lambda: _texts(page, ".log div") == ["of actor 0"], 10, "the log of the process")
    assert page.evaluate("document.activeElement.className") == "log"
    page.focus(".parts button:has-text('Events')")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "part-events"


def _luminance(colour):
    """Return the relative luminance of a colour such as rgb(1, 2, 3), as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


_COLOURS = """nodes => nodes.map((node) => {
  let under = node;
  while (getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)') under = under.parentNode;
  return [node.textContent, getComputedStyle(node).color, getComputedStyle(under).backgroundColor];
})"""


def test_texts_can_be_read_in_light_and_dark(large, dashboard, browser):
    large.write_state("actor-1", state="failed", code=1)
    large.write_state("actor-2", state="away")
    for scheme in ("light", "dark"):
        page = browser.open(dashboard.address, f"{ROW}:nth-child(300)", color_scheme=scheme)
        page.wait_for_selector(f"{ROW}.bad")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (_luminance(background) > 0.5) == (scheme == "light")
        found = page.eval_on_selector_all(
            "h1, .state, .soft, .verdict, .badge, td, th button, .tile b, .value, select",
            _COLOURS,
        )
        assert len(found) > 1000
        for text, colour, under in found:
            light, dark = sorted((_luminance(colour), _luminance(under)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.4, f"{text}: {colour} on {under}"


def test_a_phone_shows_all_without_scrolling_sideways(large, dashboard, browser):
    large.write_state("actor-1", host=f"a-very-long-host-name-{'x' * 60}.example.org")
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    page = browser.open(dashboard.address, f"{ROW}:nth-child(300)", **phone)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    boxes = page.eval_on_selector_all(
        ".parts button, .bar select",
        "all => all.map((n) => n.getBoundingClientRect().height)",
    )
    assert min(boxes) >= 30, "fingers can hit them"
    page.goto(f"{dashboard.address}#/")
    page.wait_for_selector(f"{RUNS} polyline")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.querySelector('.runs').parentNode.scrollWidth") <= 390, "a card"
    page.click(".runs th button:text('frames/s')")
    assert page.get_attribute(".runs th[data-name='frames/s']", "aria-sort") == "ascending"


def test_hostile_text_is_shown_as_text(large, tmp_path, browser):
    (large.logdir / "settings.json").write_text(json.dumps({"level_name": EVIL, "algorithm": EVIL}))
    (large.logdir / "learners.log").write_text(f"{EVIL}\n")
    failure = {"time": time.time(), "code": 1, "why": EVIL, "lines": [], "next": EVIL}
    large.write_state("actor-1", host=EVIL, last=EVIL, failure=failure)
    (evil := tmp_path / "runs" / "<b>run onclick=x").mkdir()
    row = {"frames": 1.0, "seconds": 1.0, "verdict": f"ended: {EVIL}", f"loss/{EVIL}": 1.0}
    (evil / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (large.logdir / "hosts.jsonl").write_text(
        json.dumps(large.hosts_row(1) | {f"cores/{EVIL}": 1.0}) + "\n"
    )
    with shown(f"--logdir={tmp_path / 'runs'}", "--tmux_sess=night") as dashboard:
        page = browser.open(dashboard.address, f"{ROW}:nth-child(300)")
        page.wait_for_selector(".log div")
        assert page.text_content("h1") == f"{EVIL} · night"
        assert EVIL in _texts(page, f"{ROW}[data-name=actor-1] td")
        assert _texts(page, ".log div") == [EVIL]
        assert EVIL in page.text_content(".events")
        assert EVIL in _texts(page, ".part-hosts .legend .item")
        page.goto(f"{dashboard.address}#/")
        page.click(".runs a:has-text('<b>run')")
        wait_until(lambda: EVIL in page.text_content("main"), 10, "the name of a curve")
        assert page.locator("main img, main script, main b:text('run')").count() == 0
        answer = urllib.request.urlopen(dashboard.address, timeout=10)
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
        browser.close()


def _write_run(folder, level, seed, slope, rows=20, **settings):
    """Write a run whose return is its seed and `slope` for each 100 frames."""
    folder.mkdir(parents=True)
    settings = {"level_name": level, "algorithm": "impala", "seed": seed, **settings}
    (folder / "settings.json").write_text(json.dumps(settings | {"logdir": str(folder)}))
    (folder / "starts.jsonl").touch()
    with (folder / "metrics.jsonl").open("w") as file:
        for i in range(rows):
            row = {"frames": 100.0 * i, "seconds": 1.0 * i, "policy_lag": 2.0 + seed}
            file.write(json.dumps(row | {"episode_return": seed + slope * i}) + "\n")


@pytest.fixture
def many(tmp_path):
    """Write runs of two levels with three seeds, one of which failed early, and an empty one."""
    runs = tmp_path / "many"
    for seed in (1, 2, 3):
        _write_run(runs / f"pole-{seed}", "CartPole-v1", seed, 10, learning_rate=0.001)
        rows = 5 if seed == 3 else 20
        _write_run(runs / f"catch-{seed}", "catch", seed, 1, rows, learning_rate=0.001)
    _write_run(runs / "catch-fast", "catch", 1, 2, learning_rate=0.01)
    (runs / "empty").mkdir()
    (runs / "empty" / "starts.jsonl").touch()
    return runs


RUNS = ".runs tbody tr"
CURVES = """() => {
  const texts = (chart) => [...chart.querySelectorAll('.item')].map((item) => item.textContent);
  const charts = [...document.querySelectorAll('figure[data-key]')];
  return Object.fromEntries(charts.map((chart) => [chart.dataset.key, texts(chart)]));
}"""


def test_seeds_are_a_line_with_a_band_and_each_level_has_a_chart(many, browser):
    with shown(f"--logdir={many}") as dashboard:
        page = browser.open(dashboard.address, ".charts [data-key=catch] canvas")
        expected = {
            "catch": ["learning_rate=0.001 (3 seeds)", "learning_rate=0.01"],
            "CartPole-v1": ["learning_rate=0.001 (3 seeds)"],
        }
        wait_until(lambda: page.evaluate(CURVES) == expected, 20, "lines")
        assert page.locator(f"{RUNS} .tick input:not(:checked)").count() == 1, "the empty run"
        page.uncheck("input[aria-label='draw catch-fast']")
        page.focus(".charts [data-key=catch] .plot")
        values = {}
        for _ in range(19):
            page.keyboard.press("ArrowLeft")
            place = page.text_content(".charts [data-key=catch] .place")
            values[place] = page.text_content(".charts [data-key=catch] .legend b")
        assert values["at 400 frames"] == " 6 (5 to 7)"
        assert values["at 500 frames"] == " 6.5 (6 to 7)", "two seeds have come so far"
        page.select_option("select[aria-label=Metric]", "policy_lag")
        page.wait_for_selector(".charts .title:has-text('Policy lag')")
        page.focus(".charts [data-key=catch] .plot")
        page.keyboard.press("PageUp")
        assert page.text_content(".charts [data-key=catch] .legend b") == " 4 (3 to 5)"
        assert _texts(page, "[data-name='Policy lag']:not(:empty)")[0] == "Policy lag"
        browser.close()


def test_runs_are_sorted_and_filtered_and_only_what_differs_is_a_column(many, browser):
    with shown(f"--logdir={many}") as dashboard:
        page = browser.open(dashboard.address, f"{RUNS}:nth-child(8) polyline")
        names = lambda: _texts(page, f"{RUNS} a")  # noqa: E731
        columns = lambda: _texts(page, ".runs th")[3:7]  # noqa: E731
        assert columns() == ["level", "algorithm", "seed", "learning_rate"]
        page.click(".runs th button:text('Mean return')")
        page.click(".runs th button:text('Mean return')")
        assert names()[:4] == ["pole-3", "pole-2", "pole-1", "catch-fast"]
        assert names()[-1] == "empty", "what has no value comes last"
        page.fill("input[type=search]", "catch rate=0.001")
        assert names() == ["catch-2", "catch-1", "catch-3"]
        assert columns() == ["level", "algorithm", "seed", "frames"]
        assert page.evaluate(CURVES) == {"catch": ["3 seeds"]}
        page.uncheck("input[aria-label='draw all of these runs']")
        assert page.evaluate(CURVES) == {}
        page.fill("input[type=search]", "")
        assert page.evaluate(CURVES).keys() == {"catch", "CartPole-v1"}
        page.click(".runs a:text('catch-fast')")
        page.wait_for_selector(".chart[data-key=episode_return] canvas")
        assert page.text_content("h1") == "catch · catch-fast"
        browser.close()


def test_runs_of_other_folders_are_shown_when_asked(many, large, browser):
    with shown(f"--logdir={many}") as dashboard:
        page = browser.open(dashboard.address, f"{RUNS}:nth-child(8)")
        assert "night" not in _texts(page, f"{RUNS} a")
        page.check("text=and 1 run of other folders")
        assert "night" in _texts(page, f"{RUNS} a")
        browser.close()


def test_a_page_goes_on_after_sleep_and_after_a_dashboard_that_hung(
    living,
    dashboard,
    browser,
):
    page = browser.open(dashboard.address, f"{ROW}:nth-child(300)")
    page.wait_for_selector("#connection.live")
    frames = lambda: page.text_content(".tile:nth-child(2) b")  # noqa: E731
    dashboard.process.send_signal(signal.SIGSTOP)
    page.wait_for_selector("#connection.reconnecting", timeout=40_000)
    asleep = frames()
    dashboard.process.send_signal(signal.SIGCONT)
    page.wait_for_selector("#connection.live", timeout=40_000)
    wait_until(lambda: frames() != asleep, 20, "rows that were written meanwhile")
    points = page.text_content(".chart[data-key=episode_return] .place")
    assert points.endswith("M frames")
    session = page.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen"})  # as on a laptop that sleeps
    asleep = frames()
    time.sleep(15)
    session.send("Page.setWebLifecycleState", {"state": "active"})
    wait_until(lambda: frames() != asleep, 20, "rows that were written meanwhile")
    page.wait_for_selector("#connection.live", timeout=20_000)


def test_a_dashboard_of_three_hundred_processes_is_light(living, dashboard):
    """Some 2% of a core and less than 60 MiB, with a page that is open."""
    key = json.loads(dashboard.get("about"))["shown"]
    stream = urllib.request.urlopen(f"{dashboard.address}stream?run={key}", timeout=60)
    reader = threading.Thread(target=lambda: [None for _ in stream], daemon=True)
    reader.start()
    time.sleep(5)
    began, used = time.monotonic(), dashboard.cpu_seconds()
    time.sleep(20)
    share = (dashboard.cpu_seconds() - used) / (time.monotonic() - began)
    print(f"{share:.2%} of a core, {dashboard.peak_mib():.1f} MiB")
    assert share < 0.05  # measured: 0.015 to 0.025, by the load of the machine
    assert dashboard.peak_mib() < 60


@contextlib.contextmanager
def _training(logdir):
    """Run catch with two actors in the foreground; it ends only if it is asked to."""
    process = subprocess.Popen(
        [*EXPERIMENT, "--level_name=catch", f"--logdir={logdir}", "--num_actors=2",
         "--total_environment_frames=1e12", "--stop_at_return=1e9", "--save_checkpoint_secs=3600"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    rows = logdir / "metrics.jsonl"
    try:
        wait_until(lambda: rows.exists() and '"loss' in rows.read_text(), 120, "an update")
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _kill_actor(logdir):
    pattern = f"logdir={logdir}.*--job_name=actor.*--task=0"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True)
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)


# How many processes are running: actors by their card, all by their host, the counts, the table.
_RUNNING = r"""() => {
  const text = (selector) => document.querySelector(selector).textContent;
  const [, of, missing] = text('.host .soft').match(/^(\d+) processes.*?(?:(\d+) not running)?$/);
  const states = [...document.querySelectorAll('.processes td:nth-child(3)')];
  return [parseInt(text('.stage b')), of - (missing || 0), parseInt(text('.counts .good')),
    states.filter((each) => each.textContent.startsWith('running')).length];
}"""


def test_the_card_of_actors_the_hosts_and_the_table_agree_while_an_actor_is_dead(tmp_path, browser):
    logdir = tmp_path / "runs" / "catch"
    with _training(logdir), shown(f"--logdir={logdir}", program="experiment.py") as dashboard:
        page = browser.open(f"{dashboard.address}#/", f"{RUNS} a")
        page.click(f"{RUNS} a")
        page.wait_for_selector(f"{ROW}[data-name=actor-1]")
        wait_until(lambda: page.evaluate(_RUNNING) == [2, 3, 3, 3], 30, "all are running")
        seen = []

        def is_back(restarts):
            seen.append(page.evaluate(_RUNNING))
            actors, *others = seen[-1]
            assert others == [actors + 1] * 3
            cell = page.text_content(f"{ROW}[data-name=actor-0] td:nth-child(8)")
            return actors == 2 and cell == str(restarts)

        for kills in (1, 2, 3, 4):  # it is dead for 0.5 s, 1 s, 2 s, ...: the page looks every 2 s
            _kill_actor(logdir)
            wait_until(lambda: is_back(kills), 60, "the actor runs again")  # noqa: B023
        assert [1, 2, 2, 2] in seen
        browser.close()


def test_a_real_run_is_shown_saved_and_stopped_and_a_killed_actor_is_red(
    tmp_path,
    browser,
    monkeypatch,
):
    (driver := tmp_path / "bin" / "nvidia-smi").parent.mkdir()
    driver.write_text("#!/bin/sh\necho '0, NVIDIA H100, 87, 2048, 81559'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    logdir = tmp_path / "runs" / "catch"
    flags = (f"--logdir={tmp_path / 'runs'}", "--dashboard_control")
    with _training(logdir) as process, shown(*flags, program="experiment.py") as dashboard:
        rows = logdir / "metrics.jsonl"
        page = browser.open(f"{dashboard.address}#/", ".runs tbody tr")
        page.click(".runs a:text('catch')")
        page.wait_for_selector(f"{ROW}[data-name=actor-0].good")
        _kill_actor(logdir)
        began = time.monotonic()
        page.wait_for_selector(f"{ROW}[data-name=actor-0].bad", timeout=20_000)
        assert time.monotonic() - began < 5
        wait_until(lambda: "was killed by SIGKILL" in page.text_content(".events"), 10, "event")
        wait_until(lambda: len(read_rows(logdir, "hosts.jsonl")) > 1, 40, "what hosts use")
        used = read_rows(logdir, "hosts.jsonl")[-1]
        assert 0.3 < used["cores/localhost"] < 1.2 * os.cpu_count()
        assert 300 < used["memory/localhost"] < 10_000
        assert (used["gpu/localhost/0"], used["gpu_memory/localhost/0"]) == (87, 2048)
        page.wait_for_selector(".part-hosts .chart:nth-child(4) canvas")
        label = page.get_attribute(".part-hosts .chart:nth-child(4) .plot", "aria-label")
        assert label.startswith("GPU memory: 2 GiB")
        titles = _texts(page, ".part-hosts .title")
        assert titles == ["Cores in usecores", "MemoryGiB", "GPUs, busy%", "GPU memoryGiB"]
        page.click("text=Save now")
        page.click("dialog >> text=Yes")
        wait_until(lambda: "checkpoint" in page.text_content(".events"), 30, "the checkpoint")
        dashboard.process.send_signal(signal.SIGSTOP)
        size = rows.stat().st_size
        time.sleep(5)
        assert rows.stat().st_size > size, "the run does not notice a dashboard that hangs"
        dashboard.process.send_signal(signal.SIGCONT)
        page.click(".control >> text=Stop")
        page.click("dialog >> text=Yes")
        assert process.wait(60) == 0
        page.wait_for_selector(".headline .state:not(.good)", timeout=20_000)
        browser.close()


def test_a_run_of_the_frontend_is_shown_saved_changed_and_stopped(cluster, browser, monkeypatch):
    """Its folder's name has quotes, spaces and dollars; the log of its frontend is not needed."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    frontend = cluster.start(cluster.rows(), "--detach", "--controller=none")
    assert frontend.wait(60) == 0, frontend.printed()
    pid, _ = cluster.process("actor-0")
    flags = (f"--logdir={cluster.folder / 'none'}", "--dashboard_control", "--tmux_sess=impala")
    with shown(*flags) as dashboard:
        page = browser.open(dashboard.address, f"{ROW}:nth-child(3)")
        assert str(cluster.logdir) in page.text_content(".facts")
        os.kill(pid, signal.SIGKILL)
        page.wait_for_selector(f"{ROW}.bad[data-name=actor-0]", timeout=10_000)

        def act(name):
            known = {"...", page.text_content(".printed")}
            page.click(f".control button:text('{name}')")
            page.click("dialog >> text=Yes")
            wait_until(lambda: page.text_content(".printed") not in known, 60, "the command's end")
            return page.text_content(".printed")

        assert "impala: the learners save a checkpoint" in act("Save now")
        assert (cluster.logdir / "save-now").exists()
        cluster.rows(actors=3)
        act("Apply CSV")
        page.wait_for_selector(f"{ROW}[data-name=actor-2]", timeout=20_000)
        assert "impala: stopped in" in act("Stop")
        assert cluster.run("--status")[0] == 2, "there is no such run any more"
        page.wait_for_selector(".headline .state:text('ended')", timeout=20_000)
        shutil.rmtree(cluster.logdir)
        page.wait_for_selector("h1:text('Runs')", timeout=20_000)
        browser.errors.clear()  # what was asked about the folder in between
        browser.close()


def test_a_dashboard_sees_hosts_that_no_other_frontend_is_connected_to(lan):
    """It connects for as long as a page shows the run, and its death ends the connection."""
    far = FarCluster(lan)
    far.start(far.of(["learner1"], ["actor1"]), "--detach", "--controller=none").wait(30)
    far.until_all("running")
    laptop = far.lan.laptop
    dashboard = laptop.start(*FRONTEND, "--dashboard", "--dashboard_port=8700")
    dashboard.until(r"dashboard: http://127\.0\.0\.1:8700/\S+/")
    token = re.search(r"8700/(\S+)/", dashboard.printed())[1]

    def get(path):
        address = f"http://127.0.0.1:8700/{token}/{path}"
        program = f"import urllib.request as u; print(u.urlopen('{address}').read().decode())"
        return json.loads(laptop.run(sys.executable, "-c", program).stdout)

    key = get("about")["shown"]
    stream = laptop.start(
        sys.executable,
        "-c",
        "import re, urllib.request as u\n"
        f"for line in u.urlopen('http://127.0.0.1:8700/{token}/stream?run={key}'):\n"
        '    for name, state in re.findall(rb\'"name": "(\\S+?)".*?"state": "(\\w+)"\', line):\n'
        "        print(name.decode(), state.decode(), flush=True)",
    )
    stream.until(r"actor-0 running", 60)
    links = laptop.pids("--logs=learners")
    assert len(links) == 1
    dashboard.kill()
    wait_until(lambda: not laptop.pids("--logs=learners"), 20, "the connection's end")
    far.until_all("running")
