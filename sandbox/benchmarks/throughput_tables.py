"""What `throughput.py` found, as people read it: tables and a picture."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import peer_programs
import real_run
import thread_cpu
from components import PARTS, Components

_SHORT = {"environment": "env", "inference": "infer", "serialization": "wire", "training": "train"}


class Point(NamedTuple):
    """One of the grid."""

    place: str  # of inference: actor or learner
    actors: int
    envs: int  # of each actor


class Found(NamedTuple):
    """What a sitting brought; `save` writes it."""

    runs: dict[Point, list[real_run.Ran]]
    before: Components
    after: Components | None  # None where the sitting was cut short
    sweeps: int  # made until the components held still, or it was enough
    beside: dict[
        str, list[tuple[real_run.Ran, peer_programs.Ran]]
    ]  # by peer: ours and theirs, in turn

    @property
    def least(self) -> float:
        """Core-seconds that a step takes at least: the mean of before and after."""
        return (self.before.total + (self.after or self.before).total) / 2

    @property
    def limit(self) -> float:
        """Steps per second, were there nothing else to do."""
        return self.before.host["cores"] / self.least

    @property
    def spread(self) -> dict[str, float]:
        """Of each component: by which share it was greater afterwards."""
        if not self.after:
            return {}
        before, after = self.before, self.after
        return {part: getattr(after, part) / getattr(before, part) - 1 for part in PARTS}


def name(point: Point) -> str:
    """Of a point of the grid."""
    return f"{point.actors} x {point.envs}, inference at the {point.place}"


def spread(found: Found) -> str:
    """How much the components changed while the runs were made."""
    said = [
        f"{part} {1e6 * getattr(found.before, part):.0f} -> "
        f"{1e6 * getattr(found.after, part):.0f} us ({share:+.1%})"
        for part, share in found.spread.items()
    ]
    return f"components before -> after: {', '.join(said)}"


def _shown(found: Found) -> list[str]:
    """Stages that took anything."""
    rans = [ran for rans in found.runs.values() for ran in rans]
    return [s for s in thread_cpu.STAGES if any(ran.by_stage.get(s) for ran in rans)]


def of_runs(found: Found) -> str:
    """A row for each point: its middle run."""
    from throughput_tables import middle  # noqa: PLC0415

    cores = found.before.host["cores"]
    lines = [
        f"a step takes at least {1e6 * found.least:.0f} core-microseconds (environment, inference, "
        f"training): {found.limit:,.0f} steps/s on {cores} cores"
    ]
    if not found.runs:
        return "\n".join(lines)
    shown = _shown(found)
    heads = "".join(f"{_SHORT.get(s, s):>8}" for s in [*shown, "all"])
    lines += [
        f"{'':39}CPU seconds per 1,000 steps",
        f"inference actors envs   steps/s  eff.  {heads}  idle others  (runs)",
    ]
    for point, rans in found.runs.items():
        ran = middle(rans)
        each = "".join(f"{1e3 * ran.by_stage[s]:8.3f}" for s in shown)
        idle = max(cores - ran.cores - ran.others, 0.0)
        slow, fast = min(r.steps for r in rans), max(r.steps for r in rans)
        lines.append(
            f"{point.place:9} {point.actors:6} {point.envs:4} {ran.steps:9,.0f} "
            f"{ran.steps / found.limit:5.2f}  {each}{1e3 * ran.cores / ran.steps:8.3f} "
            f"{idle:5.2f} {ran.others:6.2f}  ({slow:,.0f} to {fast:,.0f})"
        )
    least = {part: 1e3 * getattr(found.before, part) for part in PARTS}
    each = "".join(f"{least[s]:8.3f}" if s in least else " " * 8 for s in shown)
    lines.append(f"{'at least':29} {found.limit:9,.0f}"[:31].ljust(39) + each)
    unknown: dict[str, float] = {}
    for rans in found.runs.values():
        for thread, seconds in middle(rans).unknown.items():
            unknown[thread] = max(unknown.get(thread, 0.0), 1e3 * seconds)
    most = sorted(unknown.items(), key=lambda item: -item[1])[:4]
    if most:
        said = ", ".join(f"{thread} {seconds:.3f}" for thread, seconds in most)
        lines.append(f"other, at most: {said}")
    busy = max(middle(rans).others for rans in found.runs.values())
    if busy > 0.05:
        lines.append(
            f"other programs took up to {busy:.2f} cores meanwhile: the figures are too low"
        )
    return "\n".join(lines)


def of_peers(found: Found) -> str:
    """A line for each peer; nothing where there is none."""
    from throughput_tables import middle  # noqa: PLC0415

    lines = []
    for peer, pairs in found.beside.items():
        if not pairs:
            continue
        ours, theirs = (middle(rans) for rans in zip(*pairs, strict=True))
        costs = [1e3 * ran.cores / ran.steps for ran in (ours, theirs)]
        lines += [
            f"beside {peer}, in turn, {len(pairs)} times; {found.before.host['processor']}, "
            f"{' '.join(found.before.host['cpu_flags'])}; ours in "
            f"{found.before.settings['precision']}",
            f"  steps/s                      {ours.steps:9,.0f} and {theirs.steps:9,.0f}: "
            f"{ours.steps / theirs.steps:.2f}x",
            f"  core-seconds per 1,000 steps {costs[0]:9.3f} and {costs[1]:9.3f}: "
            f"{costs[1] / costs[0]:.2f}x less",
            f"  of each other, run by run: "
            f"{', '.join(f'{a.steps / b.steps:.2f}x' for a, b in pairs)}",
        ]
    return "".join(f"{line}\n" for line in lines)


def draw(found: Found, *targets: Path) -> None:
    """Steps per second beside the limit, and what a step took of the CPU beside what it needs."""
    from throughput_tables import middle  # noqa: PLC0415

    sys.path.append(str(Path(__file__).resolve().parent.parent))
    import plot_style  # noqa: PLC0415

    shown = _shown(found)
    labels = [f"{p.actors} x {p.envs}\n{p.place}" for p in found.runs]
    rans: list[Any] = [middle(rans) for rans in found.runs.values()]
    drawn, (speed, cost) = plot_style.pyplot().subplots(
        1, 2, figsize=(9, 1.4 + 0.42 * len(rans)), sharey=True, layout="constrained"
    )
    places = range(len(rans))
    speed.barh(places, [ran.steps for ran in rans], color=plot_style.COLOURS[0], height=0.6)
    for i, these in enumerate(found.runs.values()):
        ends = [min(ran.steps for ran in these), max(ran.steps for ran in these)]
        speed.plot(ends, [i, i], color="#333333")
    speed.axvline(found.limit, linestyle="--", color="gray")
    speed.set_yticks(places, labels)
    speed.set(
        title="steps/s (dashed: what the parts allow)",
        ylabel="actors x environments\nwhere inference is done",
    )
    speed.invert_yaxis()
    left = [0.0] * len(rans)
    for colour, stage in zip(plot_style.COLOURS, shown, strict=False):
        values = [1e3 * ran.by_stage[stage] for ran in rans]
        cost.barh(places, values, left=left, color=colour, height=0.6, label=stage)
        left = [a + b for a, b in zip(left, values, strict=True)]
    cost.axvline(1e3 * found.least, linestyle="--", color="gray")
    cost.set(title="CPU seconds per 1,000 steps (dashed: the least)")
    cost.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)
    plot_style.save(drawn, *targets)


def middle(rans: Sequence[Any]) -> Any:
    """Of runs, that with the middle steps per second; of an even number, the slower one."""
    return sorted(rans, key=lambda ran: ran.steps)[(len(rans) - 1) // 2]
