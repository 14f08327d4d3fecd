"""The results of `throughput.py` as tables and a figure."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import peer_programs
import real_run
import thread_cpu
from components import PARTS, ComponentCosts

_SHORT = {"environment": "env", "inference": "infer", "serialization": "wire", "training": "train"}


class GridPoint(NamedTuple):
    """One setting that a sweep measures."""

    place: str  # place of inference: actor or learner
    actors: int
    envs: int  # environments of each actor
    replay: str = ""  # KIND:N, N replayed unrolls for each new one; empty: no replay


Runs = dict[GridPoint, list[real_run.RunMeasurement]]  # the runs of each point


class SweepResults(NamedTuple):
    """All that one call of `throughput.py` measured; its `save_results` writes it."""

    runs: Runs
    before: ComponentCosts
    after: ComponentCosts | None  # None if the sweep was interrupted
    sweeps: int  # number of sweeps that were made
    # By peer: pairs of a run of ours and one of the peer, in turn.
    peer_runs: dict[str, list[tuple[real_run.RunMeasurement, peer_programs.PeerMeasurement]]]

    @property
    def min_core_seconds(self) -> float:
        """The smallest number of core-seconds per step: the mean of before and after."""
        return (
            self.before.core_seconds_per_step + (self.after or self.before).core_seconds_per_step
        ) / 2

    @property
    def rate_limit(self) -> float:
        """Steps per second if the machine did nothing else."""
        return self.before.host["cores"] / self.min_core_seconds

    def efficiency(self, point: GridPoint, run: real_run.RunMeasurement) -> float:
        """Return a run's steps per second as a share of the limit, with all that it trained on."""
        seconds = self.min_core_seconds
        if point.replay:  # other replay is in the cost of training a new step
            seconds += (run.trained / run.steps - 1.0) * self.before.training
        return run.steps * seconds / self.before.host["cores"]

    @property
    def component_change(self) -> dict[str, float]:
        """The relative change of each component from before to after."""
        if not self.after:
            return {}
        before, after = self.before, self.after
        return {part: getattr(after, part) / getattr(before, part) - 1 for part in PARTS}


def format_point(point: GridPoint) -> str:
    """Describe a point of the grid."""
    replay = f", replay {point.replay}" if point.replay else ""
    return f"{point.actors} x {point.envs}, inference at the {point.place}{replay}"


def format_component_change(results: SweepResults) -> str:
    """Describe how much the components changed during the runs."""
    changes = [
        f"{part} {1e6 * getattr(results.before, part):.0f} -> "
        f"{1e6 * getattr(results.after, part):.0f} us ({share:+.1%})"
        for part, share in results.component_change.items()
    ]
    return f"components before -> after: {', '.join(changes)}"


def _stages_used(results: SweepResults) -> list[str]:
    """Return the stages that used any CPU time."""
    runs = [run for runs in results.runs.values() for run in runs]
    return [s for s in thread_cpu.STAGES if any(run.by_stage.get(s) for run in runs)]


def format_runs(results: SweepResults) -> str:
    """Return a table with a row for each point's median run."""

    cores = results.before.host["cores"]
    lines = [
        f"minimal cost of a step: {1e6 * results.min_core_seconds:.0f} core-microseconds "
        f"(environment, inference, training): {results.rate_limit:,.0f} steps/s on {cores} cores"
    ]
    if not results.runs:
        return "\n".join(lines)
    shown = _stages_used(results)
    heads = "".join(f"{_SHORT.get(s, s):>8}" for s in [*shown, "all"])
    replays = any(point.replay for point in results.runs)
    extra = f"{'replay':>16} {'trained/s':>9} " if replays else ""
    lines += [
        f"{'':{39 + len(extra)}}CPU seconds per 1,000 steps",
        f"inference actors envs {extra}  steps/s  eff.  {heads}  idle others  (runs)",
    ]
    for point, runs in results.runs.items():
        run = median_run(runs)
        each = "".join(f"{1e3 * run.by_stage[s]:8.3f}" for s in shown)
        idle = max(cores - run.cores - run.others, 0.0)
        slow, fast = min(r.steps for r in runs), max(r.steps for r in runs)
        more = f"{point.replay or 'none':>16} {run.trained:9,.0f} " if replays else ""
        lines.append(
            f"{point.place:9} {point.actors:6} {point.envs:4} {more}{run.steps:9,.0f} "
            f"{results.efficiency(point, run):5.2f}  {each}{1e3 * run.cores / run.steps:8.3f} "
            f"{idle:5.2f} {run.others:6.2f}  ({slow:,.0f} to {fast:,.0f})"
        )
    least = {part: 1e3 * getattr(results.before, part) for part in PARTS}
    each = "".join(f"{least[s]:8.3f}" if s in least else " " * 8 for s in shown)
    limit = f"{'minimum':21} {'':{len(extra)}}{results.rate_limit:9,.0f}"
    lines.append(limit.ljust(39 + len(extra)) + each)
    unknown: dict[str, float] = {}
    for runs in results.runs.values():
        for thread, seconds in median_run(runs).unknown.items():
            unknown[thread] = max(unknown.get(thread, 0.0), 1e3 * seconds)
    most = sorted(unknown.items(), key=lambda item: -item[1])[:4]
    if most:
        listed = ", ".join(f"{thread} {seconds:.3f}" for thread, seconds in most)
        lines.append(f"largest in the stage other: {listed}")
    busy = max(median_run(runs).others for runs in results.runs.values())
    if busy > 0.05:
        lines.append(
            f"other programs used up to {busy:.2f} cores during the runs: the figures are too low"
        )
    return "\n".join(lines)


def format_peers(results: SweepResults) -> str:
    """Return some lines for each peer; an empty string if there is none."""

    lines = []
    for peer, pairs in results.peer_runs.items():
        if not pairs:
            continue
        ours, theirs = (median_run(runs) for runs in zip(*pairs, strict=True))
        costs = [1e3 * run.cores / run.steps for run in (ours, theirs)]
        lines += [
            f"impala_mm and {peer} in turn, {len(pairs)} times; "
            f"{results.before.host['processor']}, {' '.join(results.before.host['cpu_flags'])}; "
            f"impala_mm in {results.before.settings['precision']}",
            f"  steps/s                      {ours.steps:9,.0f} and {theirs.steps:9,.0f}: "
            f"{ours.steps / theirs.steps:.2f}x",
            f"  core-seconds per 1,000 steps {costs[0]:9.3f} and {costs[1]:9.3f}: "
            f"{costs[1] / costs[0]:.2f}x less",
            f"  ratio of steps/s by pair of runs: "
            f"{', '.join(f'{a.steps / b.steps:.2f}x' for a, b in pairs)}",
        ]
    return "".join(f"{line}\n" for line in lines)


def draw_results(results: SweepResults, *targets: Path) -> None:
    """Draw steps/s with their limit, and the CPU time of a step with its minimum."""

    sys.path.append(str(Path(__file__).resolve().parent.parent))
    import plot_style  # noqa: PLC0415

    shown = _stages_used(results)
    labels = [f"{p.actors} x {p.envs}\n{p.replay or p.place}" for p in results.runs]
    runs: list[Any] = [median_run(runs) for runs in results.runs.values()]
    figure, (speed, cost) = plot_style.pyplot().subplots(
        1, 2, figsize=(9, 1.4 + 0.42 * len(runs)), sharey=True, layout="constrained"
    )
    places = range(len(runs))
    speed.barh(places, [run.steps for run in runs], color=plot_style.COLOURS[0], height=0.6)
    for i, these in enumerate(results.runs.values()):
        ends = [min(run.steps for run in these), max(run.steps for run in these)]
        speed.plot(ends, [i, i], color="#333333")
    speed.axvline(results.rate_limit, linestyle="--", color="gray")
    speed.set_yticks(places, labels)
    speed.set(
        title="steps/s (dashed: limit of the components)",
        ylabel="actors x environments\nplace of inference",
    )
    speed.invert_yaxis()
    left = [0.0] * len(runs)
    for colour, stage in zip(plot_style.COLOURS, shown, strict=False):
        values = [1e3 * run.by_stage[stage] for run in runs]
        cost.barh(places, values, left=left, color=colour, height=0.6, label=stage)
        left = [a + b for a, b in zip(left, values, strict=True)]
    cost.axvline(1e3 * results.min_core_seconds, linestyle="--", color="gray")
    cost.set(title="CPU seconds per 1,000 steps (dashed: minimum)")
    cost.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)
    plot_style.save_figure(figure, *targets)


def median_run(runs: Sequence[Any]) -> Any:
    """Return the run with the median steps per second; of an even number, the slower one."""
    return sorted(runs, key=lambda run: run.steps)[(len(runs) - 1) // 2]
