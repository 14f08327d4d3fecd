"""How fast real runs are, beside what this machine's parts allow, measured in one sitting.

    python sandbox/benchmarks/throughput.py --agent_name=SimpleConvNetAgent --batch_size=32
    python sandbox/benchmarks/throughput.py --actors=2 --envs=32 --repeats=1 --seconds=6
    python sandbox/benchmarks/throughput.py --batch_size=32 --peer='cleanrl=python ...'

Each point of a grid (actors x environments of each x where inference is done) is a run of
experiment.py, a learner and actors in processes of their own, learning on; every flag of
experiment.py goes through to it, such as --env_groups. The level is Pong unless --level_name says
another. The points take turns, --repeats times, and the middle run counts. Before and after,
`components.py` measures what a step costs at least, and

    efficiency = steps per second / (cores / (t_env + t_infer + t_train))

Where a component changed by more than a tenth meanwhile, the machine did other things: the sweep is
made again, twice at most. Printed are steps per second, efficiency, CPU seconds per 1,000 steps by
what they were spent on (`stages.py`), and cores that stood idle. `speed.md` says how to read it.

A --peer's command runs beside our best point, ours and theirs in turn. Its steps are read from what
it prints: CleanRL's `SPS: N`, Sample Factory's `Total num frames: N` (frames, skipped ones
included, so divided by 4), or whatever --peer_pattern says. Ctrl-C prints what there is.

With --batch_size's default, 8 unrolls, an update is of 160 steps, and costs each of them more, for
the optimizer passes over all weights. --batch_size=32 (640 steps) is what is to be held against
peers' minibatches of 512 steps.
"""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import components
import peer_programs
import real_run
import throughput_tables
import wire_costs
from components import Components
from progress import Hint, Progress
from throughput_tables import Found, Point, middle

from impala_mm.config import flags
from impala_mm.config.flags import flag
from impala_mm.config.settings import Config

_STEADY = 0.1  # by which components may change while the runs they are held against are made
_AGAIN = 2  # times that a sweep is made again
_START = 12.0  # seconds that a run takes to start, train, and end; a guess
_PLACES = ("actor", "learner")
_PONG = "PongNoFrameskip-v4"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Flags of this program besides those of experiment.py."""

    # fmt: off
    actors: str = flag(
        "1,2,3", group="Sweep",
        text="Numbers of actors.")
    envs: str = flag(
        "16,32", group="Sweep",
        text="Environments of each actor.")
    places: str = flag(
        "actor,learner", group="Sweep",
        text="Where inference is done; learner only where experiment.py has --inference.")
    repeats: int = flag(
        3, group="Sweep", least=1,
        text="Runs of each point; the one with the middle steps per second counts.")
    seconds: float = flag(
        15, group="Sweep", least=1,
        text="Seconds for which a run, and a peer, is measured once it is warm.")
    component_seconds: float = flag(
        0.6, group="Sweep", least=0.01,
        text="Seconds for which each point of the components is measured.")
    out: str = flag(
        "", group="Sweep",
        text="Folder for throughput.json, .svg and .png. Unset: runs/throughput-<time>.")
    peer: tuple[str, ...] = flag(
        (), group="Peers",
        text="NAME=COMMAND: a program to be measured beside our best point; may be repeated.")
    peer_pattern: tuple[str, ...] = flag(
        (), group="Peers",
        text="NAME=REGEX: its lines that count, by a group (?P<steps>...), a count since the "
             "start, or (?P<average>...), a mean rate since the start.")
    peer_divide: tuple[str, ...] = flag(
        (), group="Peers",
        text="NAME=NUMBER: how many of what it counts are a step; 4 where Atari's frames are.")
    peer_warm: float = flag(
        20, group="Peers", least=0,
        text="Seconds from a peer's first line that counts until it is measured.")
    # fmt: on


def best(found: dict[Point, list[real_run.Ran]]) -> Point:
    """Where most steps per second were made."""
    return max(found, key=lambda point: middle(found[point]).steps)


def grid(sweep: Sweep) -> list[Point]:
    """All points; ValueError says what is wrong with the flags."""
    has_inference = any(f.name == "inference" for f in dataclasses.fields(Config))
    places = [place for place in _words(sweep.places) if place != "learner" or has_inference]
    for place in places:
        if place not in _PLACES:
            raise ValueError(f"--places={sweep.places}: {place} is neither actor nor learner")
    numbers = []
    for name in ("actors", "envs"):
        words = _words(getattr(sweep, name))
        if not all(word.isdecimal() and int(word) for word in words):
            raise ValueError(f"--{name}={getattr(sweep, name)}: numbers such as 1,2 are due")
        numbers.append([int(word) for word in words])
    if not places:
        raise ValueError(f"--places={sweep.places}: experiment.py has no --inference yet")
    return [Point(*point) for point in itertools.product(places, *numbers)]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def turns(points: Sequence[Point], repeats: int) -> Iterable[Point]:
    """Round robin: what happens to the machine happens to all points."""
    for _ in range(repeats):
        yield from points


def until_steady(
    sweep: Callable[[], Any], measure: Callable[[], Components], before: Components
) -> tuple[Any, Components, Components, int]:
    """Sweeps until the components hold still: (what the last one found, before, after, sweeps)."""
    for count in range(1, _AGAIN + 2):
        found = sweep()
        after = measure()
        held = Found({}, before, after, count, {})
        print(throughput_tables.spread(held), flush=True)
        if max(map(abs, held.spread.values())) <= _STEADY or count > _AGAIN:
            break
        print("a component changed by more than a tenth: the sweep is made again", flush=True)
        before = after
    return found, held.before, after, count


class Sitting:
    """All that is measured in one go, kept as it comes."""

    def __init__(self, config: Config, given: list[str], sweep: Sweep):
        self._config, self._sweep = config, sweep
        own = {f.name for f in dataclasses.fields(Sweep)} | {"num_actors", "num_envs", "inference"}
        own |= {"logdir", "stop_at_return", "max_seconds", "learner_hosts"}
        names = ["level_name", *(name for name in given if name not in own | {"level_name"})]
        self._flags = [f"--{name}={getattr(config, name)}" for name in names]
        self.found: Found | None = None

    def measure(self, points: list[Point], rivals: list[peer_programs.Peer]) -> None:
        """Components, sweep, components; then the peers."""
        seconds, hint = self._sweep.component_seconds, Hint("components")

        def measure() -> Components:
            measured = bench.measure(measured_wire)
            hint.end()
            return measured

        print("measuring the components first: a minute or two where emulators start", flush=True)
        measured_wire = wire_costs.measure(self._config, seconds, hint)
        with components.Bench(self._config, seconds, hint) as bench:
            before = measure()
            print(components.table(before), flush=True)
            self.found = Found({}, before, None, 1, {})
            ran, before, after, count = until_steady(lambda: self._run_all(points), measure, before)
        self.found = Found(ran, before, after, count, {})
        for rival in rivals:
            self._beside(rival)

    def _run_all(self, points: list[Point]) -> dict[Point, list[real_run.Ran]]:
        found: dict[Point, list[real_run.Ran]] = {}
        assert self.found
        self.found = self.found._replace(runs=found)  # Ctrl-C shows what is in it by then
        said = Progress(len(points) * self._sweep.repeats, self._sweep.seconds + _START)
        for point in turns(points, self._sweep.repeats):
            ran = self._run(point)
            found.setdefault(point, []).append(ran)
            said(f"{throughput_tables.name(point)}: {ran.steps:,.0f} steps/s")
        return found

    def _run(self, point: Point) -> real_run.Ran:
        argv = [*self._flags, f"--num_actors={point.actors}", f"--num_envs={point.envs}"]
        if any(f.name == "inference" for f in dataclasses.fields(Config)):
            argv.append(f"--inference={point.place}")
        argv.append(f"--learner_hosts={real_run.free_address()}")
        return real_run.run(argv, self._sweep.seconds, point.place)

    def _beside(self, rival: peer_programs.Peer) -> None:
        assert self.found
        pairs = self.found.beside.setdefault(rival.name, [])
        point, sweep = best(self.found.runs), self._sweep
        said = Progress(2 * sweep.repeats, sweep.seconds + sweep.peer_warm / 2 + _START)
        for _ in range(sweep.repeats):
            ours = self._run(point)
            said(f"ours, {throughput_tables.name(point)}: {ours.steps:,.0f} steps/s")
            theirs = peer_programs.run(rival, sweep.seconds, sweep.peer_warm)
            said(f"{rival.name}: {theirs.steps:,.0f} steps/s")
            pairs.append((ours, theirs))


def save(found: Found, folder: Path) -> None:
    """Everything as JSON, and the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "least_core_seconds_per_step": found.least,
        "limit": found.limit,
        "sweeps": found.sweeps,
        "spread": found.spread,
        "before": components.to_json(found.before),
        "after": components.to_json(found.after) if found.after else None,
        "points": [
            point._asdict() | {"runs": [ran._asdict() for ran in rans]}
            for point, rans in found.runs.items()
        ],
        "peers": {
            name: [{"ours": ours._asdict(), "theirs": theirs._asdict()} for ours, theirs in pairs]
            for name, pairs in found.beside.items()
        },
    }
    (folder / "throughput.json").write_text(json.dumps(record, indent=1) + "\n")
    if found.runs:
        throughput_tables.draw(found, folder / "throughput.svg", folder / "throughput.png")
    print(f"wrote {folder}/throughput.json")


def main() -> None:
    """Measures and prints."""
    (config, sweep), given = flags.parse(sys.argv, __doc__ or "", Config, Sweep)
    try:
        points = grid(sweep)
        rivals = peer_programs.named(sweep.peer, sweep.peer_pattern, sweep.peer_divide)
    except ValueError as error:
        flags.refuse(str(error))
    if "level_name" not in given:
        config = dataclasses.replace(config, level_name=_PONG)
    sitting, code = Sitting(config, given, sweep), 0
    try:
        sitting.measure(points, rivals)
    except KeyboardInterrupt:
        code = 130
    except (real_run.Failed, peer_programs.Failed) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    if found := sitting.found:
        print(throughput_tables.of_runs(found))
        print(throughput_tables.of_peers(found), end="")
        save(found, Path(sweep.out or f"runs/throughput-{time.strftime('%Y%m%d-%H%M%S')}"))
    sys.exit(code)


if __name__ == "__main__":
    main()
