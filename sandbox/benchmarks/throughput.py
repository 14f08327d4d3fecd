"""The throughput of real runs, compared with what this machine's parts allow, in one session.

    python sandbox/benchmarks/throughput.py --agent_name=SimpleConvNetAgent --batch_size=32
    python sandbox/benchmarks/throughput.py --actors=2 --envs=32 --repeats=1 --seconds=6
    python sandbox/benchmarks/throughput.py --batch_size=32 --peer='cleanrl=python ...'
    python sandbox/benchmarks/throughput.py --batch_size=40 --replays=none,uniform:1,uniform:4

Each point of a grid (actors x environments per actor x place of inference x replay) is a training
run of experiment.py with a learner and actors in separate processes. All flags of experiment.py are
passed on to it, such as --env_groups. The level is Pong unless --level_name is given. The points
take turns, --repeats times, and each point's median run counts. Before and after, `components.py`
measures the minimal cost of a step, and

    efficiency = steps per second / (cores / (t_env + t_infer + t_train))

With --replays, t_train counts once for each time that a step is trained on. Of --replay, and of an
algorithm with a replay of its own, t_train of a new step contains what is replayed with it.

If a component changed by more than a tenth between the two measurements, the machine had other
load: the sweep is repeated, at most twice. The output contains steps per second, efficiency, CPU
seconds per 1,000 steps by activity (`thread_cpu.py`), and idle cores. `speed.md` explains it.

A --peer's command is measured in turn with the fastest point. Its steps are read from its output:
CleanRL's `SPS: N`, Sample Factory's `Total num frames: N` (frames including skipped ones, so
divided by 4), or a line that matches --peer_pattern. Ctrl-C prints what is complete.

With the default --batch_size of 8 unrolls, an update has 160 steps and costs more per step, because
the optimizer processes all weights. Compare --batch_size=32 (640 steps) with peers whose minibatch
has 512 steps.
"""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import components
import peer_programs
import real_run
import throughput_tables
from components import ComponentCosts, measure_wire
from progress import RunProgress, StatusLine
from throughput_tables import GridPoint, Runs, SweepResults, median_run

from impala_mm.config import command_line, flags, replay_mix
from impala_mm.config.flags import flag
from impala_mm.config.settings import Config

# The share by which components may change between the measurements before and after the runs.
_MAX_COMPONENT_CHANGE = 0.1
_MAX_REPEATED_SWEEPS = 2  # times that a sweep is repeated
_RUN_OVERHEAD_SECONDS = 12.0  # estimated seconds for a run to start, begin to train, and stop
_PLACES = ("actor", "learner")
_REPLAY_UNROLLS = 1000  # what a replay holds
_PONG = "PongNoFrameskip-v4"


@dataclasses.dataclass(frozen=True)
class SweepFlags:
    """Flags of this program in addition to those of experiment.py."""

    # fmt: off
    actors: str = flag(
        "1,2,3", group="Sweep",
        text="Numbers of actors, separated by commas.")
    envs: str = flag(
        "16,32", group="Sweep",
        text="Numbers of environments of each actor, separated by commas.")
    places: str = flag(
        "actor,learner", group="Sweep",
        text="Places of inference, separated by commas: actor, learner.")
    replays: str = flag(
        "none", group="Sweep",
        text="Replays to compare, separated by commas: none, or KIND:N, such as uniform:4, for N "
             "replayed unrolls with each new one. An update has batch_size unrolls in each, so "
             "choose one that all divide, such as 40 for none,uniform:1,uniform:4,elite:1.")
    repeats: int = flag(
        3, group="Sweep", least=1,
        text="Runs of each point; the one with the median steps per second counts.")
    seconds: float = flag(
        15, group="Sweep", least=1,
        text="Seconds for which a run or a peer is measured after its warm-up.")
    component_seconds: float = flag(
        0.6, group="Sweep", least=0.01,
        text="Seconds for which each point of the components is measured.")
    out: str = flag(
        "", group="Sweep",
        text="Folder for throughput.json, .svg and .png. Unset: runs/throughput-<time>.")
    peer: tuple[str, ...] = flag(
        (), group="Peers",
        text="NAME=COMMAND: a program to compare with the fastest point; may be repeated.")
    peer_pattern: tuple[str, ...] = flag(
        (), group="Peers",
        text="NAME=REGEX: the pattern of its counting lines, with a group (?P<steps>...) for a "
             "count since the start or (?P<average>...) for a mean rate since the start.")
    peer_divide: tuple[str, ...] = flag(
        (), group="Peers",
        text="NAME=NUMBER: printed units per step; 4 if the program counts Atari's frames.")
    peer_warm: float = flag(
        20, group="Peers", least=0,
        text="Seconds between a peer's first counting line and the measurement.")
    # fmt: on


def replay_mix_of(replay: str) -> str:
    """Return the --replay that KIND:N stands for; raise ValueError for anything else."""
    kind, _, number = replay.partition(":")
    if kind == replay_mix.QUEUE or not number.isdecimal() or not int(number):
        raise ValueError(f"{replay!r} is neither none nor KIND:N, such as uniform:4")
    share = int(number) / (int(number) + 1)
    mix = f"{replay_mix.QUEUE}:{1 - share:.6g},{kind}:{share:.6g}:{_REPLAY_UNROLLS}"
    replay_mix.parse(mix)
    return mix


def make_grid(sweep: SweepFlags, batch_size: int = 0) -> list[GridPoint]:
    """Return all points of the grid; raise ValueError for invalid flags.

    `batch_size` must suit the replays; 0: it is not known.
    """
    places = _split(sweep.places)
    for place in places:
        if place not in _PLACES:
            raise ValueError(f"--places={sweep.places}: {place!r} is neither actor nor learner")
    numbers = []
    for name in ("actors", "envs"):
        words = _split(getattr(sweep, name))
        if not all(word.isdecimal() and int(word) for word in words):
            raise ValueError(f"--{name}={getattr(sweep, name)}: give numbers such as 1,2")
        numbers.append([int(word) for word in words])

    replays = ["" if replay == "none" else replay for replay in _split(sweep.replays)]
    for replay in filter(None, replays):
        try:
            mix = replay_mix.parse(replay_mix_of(replay))
            if batch_size:
                replay_mix.split_columns(mix, batch_size)
        except ValueError as error:
            raise ValueError(f"--replays={sweep.replays}: {error}") from None
    return [GridPoint(*point) for point in itertools.product(places, *numbers, replays)]


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def sweep_until_steady(
    sweep: Callable[[], Runs], measure: Callable[[], ComponentCosts], before: ComponentCosts
) -> SweepResults:
    """Repeat the sweep until the components hardly change, and return the results of the last."""
    count = 1
    while True:
        runs, after = sweep(), measure()
        results = SweepResults(runs, before, after, count, {})
        print(throughput_tables.format_component_change(results), flush=True)
        changes = map(abs, results.component_change.values())
        if max(changes) <= _MAX_COMPONENT_CHANGE or count > _MAX_REPEATED_SWEEPS:
            return results
        print("a component changed by more than a tenth: repeating the sweep", flush=True)
        before, count = after, count + 1


class ThroughputBenchmark:
    """All measurements of one call, available while they are made."""

    def __init__(self, config: Config, given: list[str], sweep: SweepFlags):
        self._config, self._sweep = config, sweep
        own = {f.name for f in dataclasses.fields(SweepFlags)} | real_run.SET_HERE
        own |= {"level_name", "num_envs", "inference"}
        names = ["level_name", *(name for name in given if name not in own)]
        self._flags = flags.arguments(config, names)
        self.results: SweepResults | None = None

    def measure(self, points: list[GridPoint], peers: list[peer_programs.PeerProgram]) -> None:
        """Measure the components, the sweep, the components again, and the peers."""
        seconds, status_line = self._sweep.component_seconds, StatusLine("components")

        def measure() -> ComponentCosts:
            measured = component_benchmark.measure(measured_wire)
            status_line.clear()
            return measured

        print("measuring the components: a minute or two if emulators must start", flush=True)
        measured_wire = measure_wire(self._config, seconds, status_line)
        with components.ComponentBenchmark(
            self._config, seconds, status_line
        ) as component_benchmark:
            before = measure()
            print(components.format_table(before), flush=True)
            self.results = SweepResults({}, before, None, 1, {})
            self.results = sweep_until_steady(lambda: self._run_all(points), measure, before)
        for peer in peers:
            self._measure_peer(peer)

    def _run_all(self, points: list[GridPoint]) -> Runs:
        results: Runs = {}
        assert self.results
        if not self.results.runs:  # Ctrl-C prints what there is of the first sweep
            self.results = self.results._replace(runs=results)
        progress = RunProgress(
            len(points) * self._sweep.repeats, self._sweep.seconds + _RUN_OVERHEAD_SECONDS
        )
        for point in points * self._sweep.repeats:  # in turn: the machine's changes affect all
            run = self._run(point)
            results.setdefault(point, []).append(run)
            progress(f"{throughput_tables.format_point(point)}: {run.steps:,.0f} steps/s")
        return results

    def _run(self, point: GridPoint) -> real_run.RunMeasurement:
        argv = [*self._flags, f"--num_actors={point.actors}", f"--num_envs={point.envs}"]
        argv += [f"--inference={point.place}", f"--learner_hosts={real_run.free_address()}"]
        argv += [f"--replay={replay_mix_of(point.replay)}"] if point.replay else []
        return real_run.measure_run(argv, self._sweep.seconds, point.place)

    def _measure_peer(self, peer: peer_programs.PeerProgram) -> None:
        assert self.results
        pairs = self.results.peer_runs.setdefault(peer.name, [])
        runs, sweep = self.results.runs, self._sweep
        point = max(runs, key=lambda each: median_run(runs[each]).steps)  # the fastest
        progress = RunProgress(
            2 * sweep.repeats, sweep.seconds + sweep.peer_warm / 2 + _RUN_OVERHEAD_SECONDS
        )
        for _ in range(sweep.repeats):
            ours = self._run(point)
            progress(
                f"impala_mm, {throughput_tables.format_point(point)}: {ours.steps:,.0f} steps/s"
            )
            theirs = peer_programs.measure_peer(peer, sweep.seconds, sweep.peer_warm)
            progress(f"{peer.name}: {theirs.steps:,.0f} steps/s")
            pairs.append((ours, theirs))


def save_results(results: SweepResults, folder: Path) -> None:
    """Write all results as JSON, and the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "least_core_seconds_per_step": results.min_core_seconds,
        "limit": results.rate_limit,
        "sweeps": results.sweeps,
        "spread": results.component_change,
        "before": components.to_json(results.before),
        "after": components.to_json(results.after) if results.after else None,
        "points": [
            point._asdict() | {"runs": [run._asdict() for run in runs]}
            for point, runs in results.runs.items()
        ],
        "peers": {
            name: [{"ours": ours._asdict(), "theirs": theirs._asdict()} for ours, theirs in pairs]
            for name, pairs in results.peer_runs.items()
        },
    }
    (folder / "throughput.json").write_text(json.dumps(record, indent=1) + "\n")
    if results.runs:
        throughput_tables.draw_results(
            results, folder / "throughput.svg", folder / "throughput.png"
        )
    print(f"wrote {folder}/throughput.json")


def main() -> None:
    """Parse the command line, measure, print and save."""
    (config, sweep), given = command_line.parse(sys.argv, __doc__ or "", Config, SweepFlags)
    try:
        points = make_grid(sweep, config.batch_size)
        peers = peer_programs.parse_peers(sweep.peer, sweep.peer_pattern, sweep.peer_divide)
    except ValueError as error:
        flags.refuse(str(error))
    if "level_name" not in given:
        config = dataclasses.replace(config, level_name=_PONG)
    if config.num_envs == flags.AUTO:  # the wire is measured with these
        config = dataclasses.replace(config, num_envs=points[0].envs)
    benchmark, code = ThroughputBenchmark(config, given, sweep), 0
    try:
        benchmark.measure(points, peers)
    except KeyboardInterrupt:
        code = 130
    except (real_run.RunFailed, peer_programs.PeerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    if results := benchmark.results:
        print(throughput_tables.format_runs(results))
        print(throughput_tables.format_peers(results), end="")
        save_results(
            results, Path(sweep.out or f"runs/throughput-{time.strftime('%Y%m%d-%H%M%S')}")
        )
    sys.exit(code)


if __name__ == "__main__":
    main()
