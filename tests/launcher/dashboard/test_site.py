"""The addresses of a dashboard: who may read them, what they answer, and what they never do."""

import json
import os
import re
import shutil
import sys
import time

import pytest
from large_run import LargeRun
from processes import ROOT, run
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from run_states import record_foreground
from werkzeug.test import Client

from impala_mm.records.run_contents import POPULATION
from impala_mm.records.run_folder import take_save_request
from impala_mm.runtime.safe_files import from_json, to_json
from launcher.dashboard import control, site
from launcher.dashboard.run_finder import FoundRun
from launcher.dashboard.site import STATIC, Site
from launcher.dashboard.updates import Updates
from launcher.follow import status
from launcher.supervise.run_registry import foreground_prefix

TOKEN = "secret-token"
EVIL = "<img src=x onerror=alert(1)>\"'\u202e"


@pytest.fixture
def large(tmp_path):
    run = LargeRun("night", tmp_path / "runs" / "pong", actors=5, hosts=2)
    run.write_rows(1, 50)
    return run


@pytest.fixture
def client(large, tmp_path):
    return Client(Site(Updates(tmp_path / "runs"), TOKEN, False, "night"))


def _get(client, path):
    return client.get(f"/{TOKEN}{path}")


def _key(client):
    return _get(client, "/about").json["shown"]


def test_nothing_is_answered_without_the_token(client):
    for path in ("/", "/about", "/metrics", "/healthz", f"/{TOKEN}x/", "/x", "/static/main.js"):
        answer = client.get(path)
        assert answer.status_code == 403, path
        assert "open the address it has printed" in answer.text
    assert client.post(f"/{TOKEN}/about").status_code == 405


def test_a_population_shows_who_took_from_whom(client, tmp_path):
    assert _get(client, "/lineages").json == []
    folder = tmp_path / "runs" / "catch"
    folder.mkdir()
    shutil.copy(ROOT / "sandbox" / "reference" / "catch-population.jsonl", folder / POPULATION)
    [found] = _get(client, "/lineages").json
    assert (found["name"], found["members"], found["frames"]) == ("catch", 4, 560000)
    assert [(row["member"], row["from"]) for row in found["exchanges"]] == [(0, 2), (2, 0), (3, 0)]


def test_programs_may_send_the_token_as_a_header(client):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/healthz", headers=headers).status_code == 200
    assert client.get("/healthz", headers={"Authorization": "Bearer x"}).status_code == 403


def test_the_address_without_its_last_slash_leads_to_the_page(client):
    assert client.get(f"/{TOKEN}").location == f"/{TOKEN}/"
    assert "<title>impala_mm</title>" in _get(client, "/").text


def test_every_answer_forbids_what_the_page_does_not_need(client):
    for path in ("/", "/about", "/nothing", "/static/main.js", "/metrics"):
        policy = _get(client, path).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "trusted-types 'none'" in policy
        assert _get(client, path).headers["Referrer-Policy"] == "no-referrer"


def test_no_script_of_the_page_makes_markup_of_text():
    """Nor does any file name another host, except in the vendored library's comment."""
    for path in sorted(STATIC.rglob("*.*")):
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{path.name} has {word}"
        text = text.partition("\n")[2] if path.name.startswith("uPlot") else text
        hosts = set(re.findall(r"https?://([\w.]+)", text)) - {"www.w3.org"}
        assert not hosts, f"{path.name} names {hosts}"


def test_only_files_of_the_page_are_sent(client):
    for name in ("../site.py", "..%2fsite.py", "/etc/passwd", "uplot/", "x.js"):
        assert _get(client, f"/static/{name}").status_code == 404, name


def test_the_page_is_sent_by_a_package_that_lies_behind_a_link(tmp_path):
    """Homes of clusters are often links."""
    (tmp_path / "home").symlink_to(ROOT)
    ask = "from launcher.dashboard import site; print(site._file('index.html').status_code)"
    found = run(sys.executable, "-c", ask, cwd=tmp_path, PYTHONPATH=str(tmp_path / "home"))
    assert found == (0, "200\n")


def test_every_file_that_the_page_names_is_sent(client):
    names = set(re.findall(r'"static/(.*?)"', (STATIC / "index.html").read_text()))
    for path in STATIC.glob("*.js"):
        names |= {path.name, *re.findall(r'from "\./(.*?)"', path.read_text())}
    assert len(names) > 15
    for name in names:
        answer = _get(client, f"/static/{name}")
        assert answer.status_code == 200, name
        if name.endswith(".js"):
            assert answer.content_type.startswith("text/javascript")


def _events(answer):
    """Yield (event, content) of a stream."""
    for message in answer.iter_encoded():
        for event, data in re.findall(rb"event: (\w+)\ndata: (.*)\n", message):
            yield event.decode(), from_json(data)


def _first(updates, client, key, wanted):
    answer = _get(client, f"/stream?run={key}")
    with updates._lock:
        updates._look()
    found = {}
    for event, content in _events(answer):
        found[event] = content
        if wanted <= found.keys():
            answer.close()
            return found
    raise AssertionError


def test_a_page_is_told_what_status_and_the_rows_have(large, tmp_path):
    updates = Updates(tmp_path / "runs")
    client = Client(Site(updates, TOKEN, False, "night"))
    key = _key(client)
    found = _first(updates, client, key, {"about", "processes", "runs"})
    known = from_json(json.dumps(status.snapshot(large.run)))
    for one, other in zip(found["processes"]["changed"], known["processes"], strict=True):
        assert one.pop("up") == pytest.approx(other.pop("up"), abs=5)
        assert one == other
    assert found["processes"]["order"] == large.names
    assert found["about"]["status"]["verdict"] == known["verdict"]
    assert found["about"]["row"] == large.row(49)
    assert found["about"]["about"]["level_name"] == "PongNoFrameskip-v4"
    assert [run["name"] for run in found["runs"]] == ["night"]
    assert found["runs"][0]["policy_lag"] == large.row(49)["policy_lag"]
    assert found["runs"][0]["settings"]["level_name"] == "PongNoFrameskip-v4"
    brief = _get(client, f"/run/{key}/history?brief=policy_lag").json
    lags = [large.row(i)["policy_lag"] for i in range(1, 50)]
    assert brief["policy_lag"] == pytest.approx(lags, rel=1e-8)
    history = _get(client, f"/run/{key}/history?keys=episode_return").json
    assert history["episode_return"]["mean"] == pytest.approx(
        [large.row(i)["episode_return"] for i in range(1, 50)], rel=1e-8
    )


def test_text_of_a_run_is_sent_as_json_and_never_as_markup(large, client):
    (large.logdir / "settings.json").write_text(json.dumps({"level_name": EVIL}))
    (large.logdir / "learners.log").write_text(f"{EVIL}\n")
    large.write_state("actor-1", host=EVIL, last=EVIL)
    row = large.hosts_row(1) | {f"cores/{EVIL}": 1.0}
    (large.logdir / "hosts.jsonl").write_text(json.dumps(row) + "\n")
    key = _key(client)
    assert _get(client, f"/run/{key}/hosts").json[f"cores/{EVIL}"] == [1.0]
    log = _get(client, f"/run/{key}/log?name=learners")
    assert log.json["lines"] == [{"at": 0, "text": EVIL}]
    for answer in (log, _get(client, f"/run/{key}/hosts"), _get(client, f"/run/{key}/logs")):
        assert answer.content_type == "application/json"
    text = _get(client, "/metrics").text
    (host,) = {
        sample.labels["host"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("process") == "actor-1"
    }
    assert host == EVIL


def test_a_log_is_named_by_its_process_alone(large, client):
    secret = large.logdir.parent / "secret.log"
    secret.write_text("secret")
    key = _key(client)
    for name in ("../secret", str(secret), "secret", ""):
        answer = client.get(f"/{TOKEN}/run/{key}/log", query_string={"name": name})
        assert answer.status_code == 404
        assert "not on this machine" in answer.text
    assert _get(client, "/run/abc/logs").status_code == 404


def test_a_part_of_a_video_is_sent(large, client, tmp_path):
    (large.logdir / "videos").mkdir()
    (large.logdir / "videos" / "a.mp4").write_bytes(bytes(range(100)))
    address = f"/{TOKEN}/run/{_key(client)}/video"
    updates = Updates(tmp_path / "runs")
    (video,) = updates.with_run(_key(client), lambda w: w.describe_events())["videos"]
    query = f"key={video['key']}"
    part = client.get(f"{address}?{query}", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.data) == (206, bytes(range(10, 20)))
    assert part.content_type == "video/mp4"
    assert client.get(f"{address}?key=0").status_code == 404
    (large.logdir / "videos" / "a.mp4").unlink()
    assert client.get(f"{address}?{query}").status_code == 404


@pytest.mark.parametrize("folder_too", [False, True])
def test_nothing_outside_of_a_runs_folder_is_shown(large, tmp_path, folder_too):
    """A host of the run may have made the links; a run's folder may itself be one."""
    (outside := tmp_path / "outside").mkdir()
    record = {"frames": 1, "seconds": 1, "time": 1, "level_name": "x", "returns": [777.0]}
    (secret := outside / "about.json").write_text(json.dumps(record) + "\n")
    (outside / "film.mp4").write_bytes(b"secret")
    (videos := large.logdir / "videos").mkdir()
    (videos / "link.mp4").symlink_to(outside / "film.mp4")
    (large.logdir / "own.log").write_text("own\n")
    (videos / "no-film.mp4").symlink_to(large.logdir / "own.log")
    for name in ("x.log", "hosts.jsonl", "settings.json", "starts.jsonl", "evaluations.jsonl"):
        (large.logdir / name).unlink(missing_ok=True)
        (large.logdir / name).symlink_to(secret)
    (large.logdir / "metrics.jsonl").rename(large.logdir / "rows")
    (large.logdir / "metrics.jsonl").symlink_to("rows")  # a link within the folder
    (large.logdir / "checkpoints").mkdir()
    (large.logdir / "checkpoints" / "0000000007").symlink_to(outside)
    if folder_too:
        large.logdir.rename(tmp_path / "moved")
        large.logdir.symlink_to(tmp_path / "moved")
    updates = Updates(tmp_path / "runs")
    client = Client(Site(updates, TOKEN, False, "night"))
    key = _key(client)
    assert "x" in _get(client, f"/run/{key}/logs").json
    answer = _get(client, f"/run/{key}/log?name=x")
    assert (answer.status_code, "leads out of" in answer.text) == (404, True)
    assert _get(client, f"/run/{key}/log?name=own").status_code == 200
    assert _get(client, f"/run/{key}/hosts").json == {}
    assert _get(client, f"/run/{key}/history").json["frames"]["mean"]
    about = updates.with_run(key, lambda w: w.describe())
    assert (about["about"], about["row"]["frames"] > 1) == ({}, True)
    told = updates.with_run(key, lambda w: w.describe_events())
    assert (told["videos"], told["videos_elsewhere"]) == ([], 1)
    assert "777" not in to_json(told)
    assert not {"start", "checkpoint", "test"} & {event["kind"] for event in told["events"]}


def test_a_link_that_is_made_after_a_video_was_listed_is_not_followed(large, client, tmp_path):
    (videos := large.logdir / "videos").mkdir()
    (videos / "a.mp4").write_bytes(b"film")
    updates = Updates(tmp_path / "runs")
    (video,) = updates.with_run(_key(client), lambda w: w.describe_events())["videos"]
    address = f"/run/{_key(client)}/video?key={video['key']}"
    assert _get(client, address).data == b"film"
    (tmp_path / "a.mp4").write_bytes(b"secret")
    about = os.stat(videos)
    videos.rename(large.logdir / "before")
    videos.symlink_to(tmp_path)
    os.utime(tmp_path, ns=(about.st_mtime_ns, about.st_mtime_ns))  # it looks unchanged
    assert _get(client, address).status_code == 404


def test_videos_elsewhere_are_shown_only_in_the_dashboards_folder(large, tmp_path):
    for place in ("runs/films", "elsewhere"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.mp4").write_bytes(place.encode())
    records = [{"video": str(tmp_path / place / "a.mp4")} for place in ("runs/films", "elsewhere")]
    (large.logdir / "evaluations.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    updates = Updates(tmp_path / "runs")
    client = Client(Site(updates, TOKEN, False, "night"))
    told = updates.with_run(_key(client), lambda w: w.describe_events())
    assert (len(told["videos"]), told["videos_elsewhere"]) == (1, 1)
    address = f"/run/{_key(client)}/video?key={told['videos'][0]['key']}"
    assert _get(client, address).data == b"runs/films"


def test_pipes_in_a_runs_folder_keep_no_page_waiting(large, client):
    for name in ("metrics.jsonl", "lock", "settings.json", "y.log"):
        (large.logdir / name).unlink(missing_ok=True)
        os.mkfifo(large.logdir / name)
    key = _key(client)
    assert _get(client, f"/run/{key}/history").json == {}
    assert "y" not in _get(client, f"/run/{key}/logs").json


def test_only_a_run_that_is_gone_is_called_so(client, monkeypatch):
    assert _get(client, "/run/abc/hosts").text == "there is no such run any more\n"
    monkeypatch.setattr(site, "describe_health", lambda *_: {}["x"])
    with pytest.raises(KeyError):
        _get(client, "/healthz")


def test_nothing_is_changed_without_the_flag(large, client):
    answer = client.post(f"/{TOKEN}/run/{_key(client)}/control/stop")
    assert answer.status_code == 403
    assert answer.text == "this dashboard only shows runs: start it with --dashboard_control\n"


def test_with_the_flag_the_frontends_own_commands_are_called(large, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(control, "_call", lambda command: called.append(command[2:]) or {"code": 0})
    flags = ["--ssh_config=x"]
    client = Client(Site(Updates(tmp_path / "runs"), TOKEN, True, "night", flags))
    address = f"/{TOKEN}/run/{_key(client)}/control"
    for action in ("save", "stop"):
        assert client.post(f"{address}/{action}").json == {"code": 0}
    assert called == [[f"--{do}", "--tmux_sess=night", *flags] for do in ("save", "stop")]
    assert client.get(f"{address}/stop").status_code == 405
    why = client.post(f"{address}/apply").json
    assert why == {"code": 2, "printed": "night: the CSV that it was started from is not known"}
    assert client.post(f"{address}/format").json["printed"].startswith("format: choose one of save")


def test_a_run_in_the_foreground_is_asked_through_its_folders(large, tmp_path):
    run = record_foreground(state_folder := tmp_path / "foreground", tmp_path)
    shutil.copytree(large.run.folder / "learners", state_folder / "learners")
    found = FoundRun("k", "catch", tmp_path, run)
    assert control.act(found, "save")["printed"] == "catch was asked to save a checkpoint"
    assert take_save_request(tmp_path)
    assert control.act(found, "stop")["code"] == 0
    assert (state_folder / "stop").read_text() == "save"
    for asked, action in ((found, "apply"), (found._replace(run=None), "stop")):
        with pytest.raises(control.Refused, match="only a run that a frontend has started"):
            control.act(asked, action)


@pytest.mark.parametrize(
    ("change", "state"),
    [({"supervisor": [1, 1]}, "lost"), ({"state": "failed"}, "failed"), (None, "lost")],
)
def test_a_run_in_the_foreground_that_is_dead_is_asked_nothing(large, tmp_path, change, state):
    run = record_foreground(state_folder := tmp_path / "foreground", tmp_path)
    if change:
        large.write_state("learners", **change)
        shutil.copytree(large.run.folder / "learners", state_folder / "learners")
    found = FoundRun("k", "catch", tmp_path, run)
    for action in ("save", "stop"):
        with pytest.raises(control.Refused, match=f"catch: its state is {state}, .* continues it"):
            control.act(found, action)
    assert not (tmp_path / "save-now").exists()
    assert not (state_folder / "stop").exists()


def test_health_tells_alive_from_learning(large, client):
    healthy = _get(client, "/healthz")
    assert healthy.status_code == 200
    assert healthy.json["runs"]["night"]["learning"] is True
    silent = _get(client, "/healthz?within=0")
    assert silent.status_code == 503
    told = silent.json["runs"]["night"]
    assert (told["learning"], told["alive"]) == (False, True)
    assert _get(client, "/healthz?run=other").status_code == 404


def test_a_run_learns_while_its_updates_grow_within_the_time_that_is_asked_for(
    large, client, monkeypatch
):
    """A row without an update, as a checkpoint that takes long brings, is no alarm."""
    monkeypatch.setattr("launcher.dashboard.updates.PERIOD_SECONDS", -1.0)
    rows, before = large.logdir / "metrics.jsonl", time.time() - 100
    os.utime(rows, (before, before))
    assert _get(client, "/healthz").json["runs"]["night"]["learning"] is True
    with rows.open("a") as file:
        file.write(json.dumps(large.row(49) | {"updates_per_second": 0.0}) + "\n")
    answer = _get(client, "/healthz")
    found = answer.json["runs"]["night"]
    assert (answer.status_code, found["updates_per_second"]) == (200, 0)
    assert found["seconds_since_row"] < 50
    assert 99 < found["seconds_since_update"] < 150
    assert _get(client, "/healthz?within=50").status_code == 503
    large.write_rows(50, 51)
    assert _get(client, "/healthz?within=50").status_code == 200


def test_runs_of_the_same_name_are_told_apart(large, client, tmp_path):
    (logdir := tmp_path / "elsewhere" / "night").mkdir(parents=True)
    state_folder = tmp_path / f"{foreground_prefix()}x"
    record_foreground(state_folder, logdir)
    shutil.copytree(large.run.folder / "learners", state_folder / "learners")
    names = {str(large.logdir), str(logdir)}
    answer = _get(client, "/healthz?run=night")
    assert answer.json["runs"].keys() == names
    assert answer.status_code == 503, "one of them has made no update"
    assert _get(client, f"/healthz?run={large.logdir}").status_code == 200
    families = text_string_to_metric_families(_get(client, "/metrics").text)
    alive = {s.labels["run"] for f in families for s in f.samples if s.name.endswith("run_alive")}
    assert alive == names


def test_health_of_a_run_that_has_failed(large, client, monkeypatch):
    monkeypatch.setattr("launcher.dashboard.updates.PERIOD_SECONDS", -1.0)
    large.write_state("learners", state="failed", code=1)
    found = _get(client, "/healthz").json["runs"]["night"]
    assert (found["state"], found["alive"], found["learning"]) == ("ending", False, False)
    assert _get(client, "/healthz").status_code == 200, "no run is alive that could learn"
    assert _get(client, "/healthz?run=night").status_code == 503


def test_metrics_have_names_and_units_by_the_conventions(large, client):
    extra = {"q/value": 2.0, "wait_share/learner0": 0.25, "x y": 1.0}
    with (large.logdir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(large.row(50) | extra) + "\n")
    large.write_state("actor-2", state="waits", restarts=3)
    text = _get(client, "/metrics")
    assert text.content_type.startswith("application/openmetrics-text; version=")
    families = {f.name: f for f in text_string_to_metric_families(text.text)}
    row = large.row(50)
    values = {
        (s.name, *(v for k, v in s.labels.items() if k != "run")): s.value
        for f in families.values()
        for s in f.samples
        if "process" not in s.labels
    }
    expected = {
        ("impala_mm_frames",): row["frames"],
        ("impala_mm_training_seconds",): row["seconds"],
        ("impala_mm_wait_ratio",): row["wait_share"],
        ("impala_mm_learner_wait_ratio", "0"): 0.25,
        ("impala_mm_loss_per_step", "total"): row["loss_per_step/total"],
        ("impala_mm_actor_stepping_ratio",): row["actor/stepping_share"],
        ("impala_mm_q_value",): 2.0,
        ("impala_mm_x_y",): 1.0,
        ("impala_mm_processes", "actor", "waits"): 1,
        ("impala_mm_run_alive",): 1,
        ("impala_mm_unrolls_dropped_total",): row["unrolls_dropped"],
    }
    assert expected.items() <= values.items()
    assert abs(values["impala_mm_run_row_timestamp_seconds",] - time.time()) < 60
    assert families["impala_mm_unrolls_dropped"].type == "counter"
    assert families["impala_mm_frames"].type == "gauge", "a resumed run goes back to a checkpoint"
    assert "trained on" in families["impala_mm_frames"].documentation
    of_actor = {
        s.name: s.value
        for f in families.values()
        for s in f.samples
        if s.labels.get("process") == "actor-1"
    }
    assert of_actor["impala_mm_process_memory_bytes"] == 411 * 2**20
    assert of_actor["impala_mm_process_cpu_cores"] == 0.89
    assert of_actor["impala_mm_process_up"] == 1
