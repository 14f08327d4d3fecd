"""Tests of sandbox/benchmarks/throughput.py: CPU time is attributed, rates are compared."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from processes import ROOT, run

sys.path.append(
    str(ROOT / "sandbox" / "benchmarks")
)  # the scripts import each other by short names

import components
import peer_programs
import real_run
import thread_cpu
import throughput
import throughput_tables
from real_run import RunMeasurement

from impala_mm.config.settings import Config

BENCHMARKS = ROOT / "sandbox" / "benchmarks"
TICK = os.sysconf("SC_CLK_TCK")


# -- CPU time by stage


def write_process(proc, number, parent, words, threads, ended=0.0, session=1):
    """Write a process as /proc shows it; `threads` contains (id, name, seconds)."""
    folder = proc / str(number)
    (folder / "task").mkdir(parents=True, exist_ok=True)
    (folder / "cmdline").write_text("\0".join(words) + "\0")
    whole = ended + sum(seconds for _, _, seconds in threads)
    (folder / "stat").write_text(stat(number, threads[0][1], parent, session, whole))
    for thread, name, seconds in threads:
        (folder / "task" / str(thread)).mkdir(exist_ok=True)
        (folder / "task" / str(thread) / "stat").write_text(
            stat(thread, name, parent, session, seconds)
        )


def stat(number, name, parent, session, seconds):
    ticks = round(seconds * TICK)
    user = ticks // 3
    rest = f"0 0 0 0 0 0 0 {user} {ticks - user} 0 0 20 0 1 0 100 0 0"
    return f"{number} ({name}) S {parent} {number} {session} {rest}\n"


LEARNER = "python tf_intra tf_Compute prefetch training event_engine reports".split()
ACTOR = ["python", "environment", "tf_Compute", "link", "a) (b 1 2", "grpcpp_sync_ser"]


def write_run(proc, times, ended=0.0):
    """Write a learner with an actor and an unrelated process; `times` are the threads' seconds."""
    threads = [(10 + i, name, times[i]) for i, name in enumerate(LEARNER)]
    write_process(proc, 10, 1, ["python", "experiment.py"], threads)
    threads = [(30 + i, name, times[7 + i]) for i, name in enumerate(ACTOR)]
    write_process(proc, 30, 10, ["python", "experiment.py", "--job_name=actor"], threads, ended)
    write_process(proc, 40, 30, ["python", "worker"], [(40, "python", 0.0)])
    write_process(proc, 50, 1, ["somebody"], [(50, "python", 99.0)])


@pytest.mark.parametrize("place", ["actor", "learner"])
def test_each_threads_time_is_put_to_what_it_does_and_nothing_is_lost(tmp_path, place):
    write_run(tmp_path, [5.0] * 13, ended=1.0)
    before = thread_cpu.snapshot(10, tmp_path)
    times = [5.0 + 2.0**i for i in range(13)]  # every sum of these identifies its terms
    write_run(tmp_path, times, ended=1.5)
    spent, unknown = thread_cpu.cpu_seconds_by_stage(
        before, thread_cpu.snapshot(10, tmp_path), place
    )
    # learner: main 1, intra 2, compute 4, prefetch 8, training 16, grpc 32, reports 64;
    # actor: main 128, environment 256, compute 512, link 1024, unknown 2048, grpc 4096.
    assert spent == {
        "environment": 256,
        "inference": 512,
        "serialization": 32 + 1024 + 4096,
        "queue": 8,
        "replay": 0,
        "training": 16 + (2 + 4) * (place == "actor"),
        "network": (2 + 4) * (place == "learner"),
        "Python": 1 + 64 + 128,
        "other": 2048 + 0.5,
    }
    by_role = thread_cpu.cpu_seconds_by_role(before, thread_cpu.snapshot(10, tmp_path))
    assert by_role == {"learner": 127, "actor": 2**13 - 128 + 0.5, "actor's delay": 0}
    assert unknown == {"actor's a) (b 1 2": 2048, "actor's threads that ended": 0.5}


def test_a_session_is_counted_whole_and_others_are_not(tmp_path):
    write_process(tmp_path, 10, 1, ["a"], [(10, "a", 1.0)], session=10)
    write_process(tmp_path, 11, 10, ["b"], [(11, "b", 2.0), (12, "c", 4.0)], session=10)
    write_process(tmp_path, 20, 1, ["c"], [(20, "c", 8.0)], session=20)
    assert thread_cpu.session_cpu_seconds(10, tmp_path) == 7.0
    before = thread_cpu.snapshot(20, tmp_path)
    threads = [(21, "python", 1.0), (22, "replay-draw", 4.0)]
    write_process(tmp_path, 21, 20, ["python"], threads)
    spent, _ = thread_cpu.cpu_seconds_by_stage(before, thread_cpu.snapshot(20, tmp_path))
    assert (spent["replay"], spent["Python"]) == (4.0, 1.0), "of a process that came meanwhile"


def test_the_delay_of_an_actor_is_that_of_the_threads_that_play(tmp_path):
    write_run(tmp_path, [5.0] * 13)
    (tmp_path / "10" / "task" / "14" / "stat").unlink()  # of a thread that ends meanwhile
    before = thread_cpu.snapshot(10, tmp_path)
    for thread in range(30, 36):  # python, environment, tf_Compute, link, an unknown one, grpc
        schedstat = tmp_path / "30" / "task" / str(thread) / "schedstat"
        schedstat.write_text(f"5000000000 {10 ** (thread - 30)}000000000 7\n")
    by_role = thread_cpu.cpu_seconds_by_role(before, thread_cpu.snapshot(10, tmp_path))
    assert by_role["actor's delay"] == 1 + 10 + 100 + 10_000


# -- the grid, the median run, repeated sweeps


def made(steps, **more):
    by_stage = dict.fromkeys(thread_cpu.STAGES, 0.0) | {"environment": 4e-4, "other": 1e-5}
    return RunMeasurement(
        **{"steps": steps, "cores": 1.5, "others": 0.0, "by_stage": by_stage}
        | {"steps_per_update": 640.0, "by_role": {}, "unknown": {}, "metrics": {}}
        | more
    )


def made_of(environment, inference=1e-4, training=3e-4):
    measured = [components.Measurement("environment", 8, 1, environment)]
    host = {"cores": 2, "processor": "a CPU", "cpu_flags": ["avx2"]}
    found = {"precision": "float32"}
    return components.ComponentCosts(environment, inference, training, None, measured, host, found)


def test_points_take_turns_and_the_middle_run_of_each_counts(monkeypatch):
    sweep = throughput.SweepFlags(actors="1,3", envs="16, 32", places="actor", repeats=3)
    points = throughput.make_grid(sweep)
    assert [point[1:3] for point in points] == [(1, 16), (1, 32), (3, 16), (3, 32)]
    benchmark, order = throughput.ThroughputBenchmark(Config(), [], sweep), []
    benchmark.results = throughput_tables.SweepResults({}, made_of(4e-4), None, 1, {})
    monkeypatch.setattr(benchmark, "_run", lambda point: order.append(point) or made(500.0))
    runs = benchmark._run_all(points)
    assert order == points * 3
    assert {point: len(each) for point, each in runs.items()} == dict.fromkeys(points, 3)
    for steps, middle in (([3], 3), ([9, 1, 5], 5), ([4, 2], 2), ([1, 9, 3, 8], 3)):
        assert throughput_tables.median_run([made(float(s)) for s in steps]).steps == middle


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"actors": "1,x"}, "--actors=1,x"),
        ({"envs": "0"}, "--envs=0"),
        ({"places": "moon"}, "--places=moon"),
        ({"replays": "uniform"}, "--replays=uniform"),
        ({"replays": "best:1"}, "best"),
        ({"replays": "none,uniform:4"}, "--batch_size=8"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_in_a_sentence(wrong, said):
    with pytest.raises(ValueError, match=said):
        throughput.make_grid(throughput.SweepFlags(**wrong), batch_size=8)


# -- what is printed


@pytest.fixture
def sitting():
    """Return the results of two points, beside those of a rival."""
    a, b = throughput_tables.GridPoint("actor", 1, 16), throughput_tables.GridPoint("actor", 2, 32)
    own = {"unknown": {"learner's odd": 2e-6}, "metrics": {}}
    rans = {a: [made(500.0, **own)], b: [made(s, **own) for s in (1800.0, 2000.0, 1900.0)]}
    ours = [made(s, **own) for s in (2000.0, 2100.0, 2200.0)]
    theirs = [peer_programs.PeerMeasurement(s, 2.0, "") for s in (1000.0, 900.0, 1050.0)]
    beside = {"rival": list(zip(ours, theirs, strict=True))}
    return throughput_tables.SweepResults(rans, made_of(4e-4), made_of(4e-4), 1, beside)


def test_the_table_holds_efficiency_against_the_components(sitting):
    printed = throughput_tables.format_runs(sitting)
    row = next(line for line in printed.splitlines() if line.startswith("actor          2   32"))
    # 2 cores / (400 + 100 + 300 us) = 2,500 steps/s; 1.5 cores at 1,900 steps/s: 0.789 per 1,000.
    assert row.split()[3:] == (
        ["1,900", "0.76", "0.400", "0.010", "0.789", "0.50", "0.00", "(1,800", "to", "2,000)"]
    )
    assert "2,500 steps/s on 2 cores" in printed
    assert "learner's odd 0.002" in printed


def test_peers_are_compared_by_their_middle_runs_and_all_is_kept(sitting, tmp_path):
    printed = throughput_tables.format_peers(sitting)
    assert "2.10x" in printed, "2,100 beside 1,000 steps/s"
    assert "2.80x less" in printed, "2 cores at 1,000 beside 1.5 at 2,100"
    throughput.save_results(sitting, tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "throughput.json").read_text())
    assert kept["limit"] == pytest.approx(2500)
    assert [len(point["runs"]) for point in kept["points"]] == [1, 3]
    assert kept["before"] == {
        **{"environment": 4e-4, "inference": 1e-4, "training": 3e-4, "wire": None},
        **{"host": made_of(4e-4).host, "settings": {"precision": "float32"}},
        "measured": [{"part": "environment", "batch": 8, "threads": 1, "seconds": 4e-4}],
    }
    assert "environment" in (tmp_path / "out" / "throughput.svg").read_text()


# -- peers


def test_frames_with_those_skipped_are_divided():
    text = (
        "[2026-01-01 10:00:00,123][77] Fps is (10 sec: 3584.6, 60 sec: 3584.6, 300 sec: 3500.1). "
        "Total num frames: {}. Throughput: 0: 912.1. Samples: 12345. Policy #0 lag: (min: 0.0)"
    )
    known = peer_programs.KNOWN_PATTERNS
    lines = [peer_programs.parse_line(text.format(4000 * i), 5.0 * i, known) for i in range(1, 6)]
    assert peer_programs.recent_rate(lines, 10.0) == pytest.approx(200), "4,000 frames in 5 s"
    assert peer_programs.parse_line("global_step=64, episodic_return=-21.0", 0.0, known) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((["a"], [], []), "--peer=a"),
        ((["a=x"], [r"b=(?P<steps>\d+)"], []), "names b"),
        ((["a=x"], [r"a=(\d+)"], []), "needs a group"),
    ],
)
def test_a_peer_that_cannot_be_read_is_refused_in_a_sentence(wrong, said):
    with pytest.raises(ValueError, match=said):
        peer_programs.parse_peers(*wrong)


def test_a_peer_is_run_measured_and_ended(tmp_path):
    program = tmp_path / "peer.py"
    program.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "for i in range(10**6):\n"
        "    time.sleep(0.025)\n"  # a line may be read late, so that the next seems to come sooner
        "    print(f'done {100 * i} of it')\n"
    )
    (peer,) = peer_programs.parse_peers(
        [f"own={sys.executable} {program}"], [r"own=done (?P<steps>\d+)"], ["own=2"]
    )
    ran = peer_programs.measure_peer(peer, seconds=0.6, warm_up=0.2)
    assert 0 < ran.steps < 100 / 0.02 / 2
    assert ran.cores > 0, "its child's time is its own"
    child = Path("/proc", (tmp_path / "child").read_text())
    for _ in range(100):  # a killed process is a zombie until its new parent waits for it
        if not child.exists() or ") Z " in (child / "stat").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the peer's child keeps running")


# -- real runs


@pytest.mark.slow
def test_a_tiny_sweep_prints_writes_and_leaves_nothing_behind(tmp_path):
    code, printed = run(
        sys.executable,
        *(BENCHMARKS / "throughput.py", "--actors=1", "--envs=4"),  # catch's inference is too small
        *("--places=actor", "--repeats=1", "--seconds=2", "--component_seconds=0.02"),
        f"--out={tmp_path}/out",
        limit=300,
    )
    assert code == 0, printed
    assert "1 x 4, inference at the actor" in printed
    kept = json.loads((tmp_path / "out" / "throughput.json").read_text())
    (point,) = kept["points"]
    (ran,) = point["runs"]
    assert ran["steps"] > 0
    assert all(ran["by_stage"][s] > 0 for s in ("inference", "training", "Python"))
    assert ran["by_stage"]["other"] < 0.2 * sum(ran["by_stage"].values())
    assert min(kept["before"]["wire"].values()) > 0


def test_steps_per_second_are_those_between_two_updates():
    """Counters move only when an update ends, here after 10, 30 and 40 s."""

    def row(updates, steps, rate):
        return {"updates": updates, "steps": steps, "steps_per_second": rate}

    rows = [row(1, 1000, 7.0), row(1, 1000, 7.0), row(2, 3000, 100.0), row(3, 4000, 100.0)]
    assert real_run._steps_per_second(rows) == pytest.approx(3000 / 30)
    with pytest.raises(real_run.RunFailed, match="no update ended while it was measured"):
        real_run._steps_per_second(rows[:2])
