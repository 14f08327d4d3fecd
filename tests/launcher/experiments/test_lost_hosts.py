"""What an experiment does about hosts that it cannot reach: of their connections, a stand-in."""

import pytest

from impala_mm.config import command_line
from impala_mm.config.settings import Config
from launcher.experiments import file, run
from launcher.experiments.journal import Journal
from launcher.experiments.pool import Pool
from launcher.experiments.search import SEARCHES
from launcher.hosts.hosts import host_id_of
from launcher.plan import workers_csv
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
from launcher.supervise.process_state import State

CORES = {"h1.invalid": 4, "h2.invalid": 4}
CSV = "job,ip,count\nlearner,h1.invalid,\nlearner,h2.invalid,\nlearner,h2.invalid,\n" + (
    "actor,h1.invalid,1\nactor,h2.invalid,2\n"
)


@pytest.fixture
def reached(monkeypatch):
    """Return the set of hosts that can be reached, which a test changes."""
    found = set(CORES)

    class Hosts:
        def __init__(self, _, targets, __):
            self.remote_nodes = targets

        def connect(self, *_):
            return set(self.remote_nodes) - found

        def for_each(self, _, host_ids):
            return {host_id: {"cores": CORES[host_id], "runs": []} for host_id in host_ids}

        def close(self):
            pass

    monkeypatch.setattr(run, "Hosts", Hosts)
    return found


@pytest.fixture
def controller(tmp_path):
    """Return the process of an experiment of three trials, each with 4 cores."""
    (tmp_path / "all.csv").write_text(CSV)
    path = tmp_path / "sweep.toml"
    path.write_text("[axes]\nseed = [1, 2, 3]\n[needs]\nactors = 1\ncores = 4\n")
    argv = ["run", f"--experiment={path}", f"--logdir={tmp_path}/runs"]
    argv.append(f"--workers_csv_path={tmp_path}/all.csv")
    (launcher, config), given = command_line.parse(argv, "", LauncherConfig, Config)
    request = Request(launcher, config, given)
    experiment = file.read(request, {"grid": {}})
    experiment.folder.mkdir()
    rows = workers_csv.read(f"{tmp_path}/all.csv")[0]
    places, written = Pool(rows, experiment.needs), Journal(experiment.folder)
    chosen = SEARCHES["grid"](experiment, written.asked)
    return run.Controller(request, experiment, rows, places, chosen, written)


def test_a_host_that_is_reached_later_has_a_limit_of_cores(controller, reached, monkeypatch):
    monkeypatch.setattr(run, "_RETRY_SECONDS", -1.0)
    reached.remove("h2.invalid")
    controller._ask_hosts(sorted(CORES))
    first = controller._pool.take([])
    assert [row.ip for row in first] == ["h1.invalid"] * 2
    assert controller._pool.take([first]) == []
    reached.add("h2.invalid")
    controller._look_for_lost_hosts()
    controller._looking.join(10.0)
    second = controller._pool.take([first])
    assert [row.ip for row in second] == ["h2.invalid"] * 2
    assert controller._pool.take([first, second]) == [], "its 4 cores are used"


def test_a_trial_is_queued_again_if_the_host_of_its_actor_is_lost(controller, reached):
    controller._ask_hosts(sorted(CORES))
    trial = controller._next()
    here = controller._pool.take([])
    there = controller._pool.take([here])
    trial.rows = [here[0], there[1]]
    reached.remove(host_id_of(there[1]))
    controller._note_no_start(trial)
    assert (trial.outcome, trial.state, trial.rows) == ("lost", "queued", ())
    assert controller._pool.take([here]) == []


def test_the_hosts_that_are_away_are_lost_and_no_other_of_the_trial(
    controller, reached, monkeypatch
):
    controller._ask_hosts(sorted(CORES))
    trial = controller._next()
    here = controller._pool.take([])
    there = controller._pool.take([here])
    trial.rows, trial.state = [here[0], there[1]], "running"
    state = State("actor0", "actor", "h2", "away", "", place="h2.invalid")
    monkeypatch.setattr(trial.run, "states", lambda: {"actor0": state})
    monkeypatch.setattr(trial, "look", lambda: "away")
    started = []
    monkeypatch.setattr(trial, "start", started.append)
    controller._advance(trial)
    assert trial.state == "running"
    assert started[0][-1] == "--attach", "its frontend was killed, and may reach the host"
    controller._away[trial.number] -= 100.0  # seconds
    controller._advance(trial)
    assert trial.state == "queued"
    assert trial.rows == ()
    first = controller._pool.take([trial.rows])
    assert [row.ip for row in first] == ["h1.invalid"] * 2
    assert controller._pool.take([first]) == []
