"""The diagrams of how an agent learns: unrolls, the policy lag, an update, replay, R2D2, SAC.

`draw.py` writes them for concepts.md, replay.md, r2d2.md, sac.md and values.md.
"""

from svg_shapes import BLUE, GRAY, GREEN, INK, draw_arrow, draw_box, draw_label, draw_lane, make_svg

_SIZE, _GAP, _LEFT = 76, 14, 36  # of the boxes of entries


def _middle(entry: int) -> int:
    return _LEFT + entry * (_SIZE + _GAP) + _SIZE // 2


def _bracket(first: int, last: int, y: int, height: int, text: str) -> list[str]:
    """Return a bracket over entries; a negative height opens it upwards."""
    begin, end = _middle(first) - _SIZE // 2, _middle(last) + _SIZE // 2
    path = f'<path d="M {begin} {y + height} V {y} H {end} V {y + height}"/>'
    return [path, draw_label((begin + end) // 2, y - 8 if height > 0 else y + 18, text)]


def draw_entries() -> str:
    """Draw the entries of one environment, two unrolls of 4 steps, and a reset between episodes."""
    parts = [
        *_bracket(0, 4, 40, 12, "unroll k: T = 4 steps, T + 1 entries"),
        *_bracket(4, 8, 176, -12, "unroll k + 1"),
    ]
    ends, first = 5, 6
    for entry in range(9):
        lines = {ends: ("a, r, end", "o: the last"), first: ("o: the first", "of the next")}
        shown = lines.get(entry, ("a, r", "o"))
        fill = GRAY if entry == first else BLUE if entry == 4 else GREEN
        parts.append(draw_box(_middle(entry), 74, _SIZE, fill, f"{entry}", *shown))
        if entry:
            x, kind = _middle(entry) - _SIZE // 2, "dashed" if entry == first else ""
            parts.append(draw_arrow(f"M {x - _GAP} 110 H {x - 1}", kind=kind))
    parts += [
        draw_label(_middle(4) - 8, 232, "entry 4 is in both unrolls: the last of one"),
        draw_label(_middle(4) - 8, 249, "and the first of the next"),
        draw_arrow(f"M {_middle(4)} 218 V 150", kind="dashed"),
        draw_label(_middle(7) + 6, 232, "the transition from 5 to 6 is nobody's step:"),
        draw_label(_middle(7) + 6, 249, "it has no loss, and counts as no frame"),
    ]
    return make_svg("The entries of two unrolls", 860, 264, parts)


def draw_lag() -> str:
    """Draw what makes the policy lag where actors run freely, and why it is 0 in rounds."""
    parts = [
        draw_label(430, 22, "actors run freely (IMPALA, Q-learning, SAC): the lag is 10 - 7 = 3")
    ]
    parts.append('<text x="56" y="64" font-weight="bold">learner</text>')
    for i, version in enumerate(range(7, 12)):
        begin = 112 + 144 * i
        fill = GREEN if version == 10 else BLUE
        parts.append(draw_lane(begin, 36, begin + 144, fill, f"update {version} to {version + 1}"))
    parts += [
        '<text x="56" y="146" font-weight="bold">actor</text>',
        draw_lane(130, 118, 400, GREEN, "plays an unroll with version 7"),
        draw_lane(400, 118, 552, GRAY, "waits in the queue"),
        draw_arrow("M 120 84 V 117", kind="dashed"),
        draw_label(178, 104, "parameters, 7"),
        draw_arrow("M 552 117 V 86"),
        draw_label(640, 104, "trained by version 10"),
    ]
    parts.append(
        draw_label(430, 214, "rounds (PPO and its kin): each waits for the other, and the lag is 0")
    )
    lanes = ((112, 340, "", "plays with 7"), (340, 560, "update 7 to 8", ""))
    lanes += ((560, 788, "", "plays with 8"),)
    for top, row, name in ((228, 2, "learner"), (300, 3, "actor")):
        parts.append(f'<text x="56" y="{top + 28}" font-weight="bold">{name}</text>')
        for lane in lanes:
            busy = BLUE if row == 2 else GREEN
            text = lane[row]
            fill = busy if text else GRAY
            parts.append(draw_lane(lane[0], top, lane[1], fill, text or "waits"))
    parts += [draw_arrow("M 340 299 V 278"), draw_arrow("M 560 277 V 298", kind="dashed")]
    return make_svg("The policy lag", 860, 364, parts)


def draw_update() -> str:
    """Draw one update of a learner, from the queue to the actors."""
    xs, top, low = (110, 322, 540, 750), 40, 170
    parts = [
        draw_box(xs[0], top, 170, GRAY, "queue", "unrolls, as they came", "bounded: actors wait"),
        draw_box(
            xs[1], top, 180, GRAY, "batch", "[T+1, B, ...], on the device", "taken one update ahead"
        ),
        draw_box(
            xs[2],
            top,
            180,
            BLUE,
            "forward, loss",
            "network over all entries",
            "targets, advantages",
        ),
        draw_box(xs[3], top, 170, BLUE, "backward", "a gradient for each", "variable"),
        draw_box(xs[3], low, 170, GREEN, "all-reduce", "the mean over all", "learners, by Horovod"),
        draw_box(
            xs[2], low, 180, GREEN, "clip, apply", "by the global norm;", "the optimizer's step"
        ),
        draw_box(xs[1], low, 180, GRAY, "publish", "the new version, as", "one vector of bytes"),
        draw_box(xs[0], low, 170, GRAY, "actors", "pull it between", "two unrolls"),
        draw_arrow(f"M {xs[0] + 86} 76 H {xs[1] - 92}"),
        draw_arrow(f"M {xs[1] + 91} 76 H {xs[2] - 92}"),
        draw_arrow(f"M {xs[2] + 91} 76 H {xs[3] - 87}"),
        draw_arrow(f"M {xs[3]} 113 V 168"),
        draw_arrow(f"M {xs[3] - 86} 206 H {xs[2] + 92}"),
        draw_arrow(f"M {xs[2] - 91} 206 H {xs[1] + 92}"),
        draw_arrow(f"M {xs[1] - 91} 206 H {xs[0] + 87}"),
        draw_arrow(f"M {xs[0]} 169 V 114"),
        draw_label(xs[0] + 34, 146, "unrolls"),
        draw_label(430, 20, "blue and green: one graph, one call for each update"),
    ]
    return make_svg("One update of a learner", 860, 260, parts)


def draw_replay() -> str:
    """Draw how a batch is mixed from the queue and the stores of old unrolls."""
    parts = [
        draw_box(100, 110, 150, GREEN, "actors", "send unrolls", "as they play"),
        draw_box(340, 30, 190, GRAY, "queue", "new unrolls, each once"),
        draw_box(340, 110, 190, GRAY, "uniform", "old ones, all alike"),
        draw_box(340, 190, 190, GRAY, "prioritised, elite, ...", "old ones, by a measure"),
        draw_box(570, 110, 150, BLUE, "batch", "a fixed share", "of each kind"),
        draw_box(766, 110, 140, BLUE, "update", "new errors and", "features"),
        draw_arrow("M 176 130 L 243 66"),
        draw_arrow("M 176 142 H 243"),
        draw_arrow("M 176 154 L 243 210"),
        draw_arrow("M 436 60 L 493 126"),
        draw_arrow("M 436 140 H 493"),
        draw_arrow("M 436 214 L 493 160"),
        draw_arrow("M 646 146 H 694"),
        draw_arrow("M 766 184 V 232 H 437", kind="dashed"),
        draw_label(640, 250, "priorities and distances of the unrolls that were drawn"),
    ]
    return make_svg("The mix of replay", 860, 262, parts)


def draw_burn_in() -> str:
    """Draw the entries of two unrolls of R2D2, and what each part is for."""
    parts = [draw_label(430, 20, "the entries of one environment over time")]
    for top, begin, name in ((36, 40, "unroll k"), (132, 390, "unroll k + 1")):
        steps = begin + 80
        parts += [
            draw_lane(begin, top, steps, GRAY, "burn-in"),
            draw_lane(steps, top, steps + 350, GREEN, f"{name}: T steps, with a loss each"),
        ]
    parts += [
        draw_arrow("M 40 118 V 86"),
        draw_label(112, 112, "the LSTM's state"),
        draw_label(112, 129, "that the actor recorded"),
        draw_label(228, 160, "the burn-in repeats the end of the"),
        draw_label(228, 177, "unroll before: both networks read it"),
        draw_label(228, 194, "without gradients, until their memory"),
        draw_label(228, 211, "is that of the present weights"),
        draw_arrow("M 330 172 L 388 160", kind="dashed"),
        draw_label(640, 70, "a target has up to n rewards, and then"),
        draw_label(640, 87, "the target network's value; fewer"),
        draw_label(640, 104, "rewards at the unroll's end"),
    ]
    return make_svg("Burn-in", 860, 226, parts)


def draw_sac() -> str:
    """Draw the networks of SAC, and what trains each of them."""
    parts = [
        draw_box(110, 112, 160, GRAY, "replay", "(o, a, r, o') of single", "steps, old and new"),
        draw_box(370, 20, 190, GREEN, "policy", "a normal distribution,", "through tanh"),
        draw_box(370, 204, 190, BLUE, "two Q-networks", "the lesser of both", "values counts"),
        draw_box(700, 204, 190, GRAY, "their targets", "follow by 0.005", "in each step"),
        draw_box(
            700, 20, 190, GRAY, "temperature", "the weight of the entropy,", "trained to a target"
        ),
        draw_arrow("M 191 132 L 273 66"),
        draw_arrow("M 191 166 L 273 230"),
        draw_arrow("M 350 203 V 95"),
        draw_label(262, 152, "which actions are"),
        draw_label(262, 169, "worth more"),
        draw_arrow("M 390 94 V 202", kind="dashed"),
        draw_label(462, 152, "the action that"),
        draw_label(462, 169, "would follow"),
        draw_arrow("M 466 240 H 603"),
        draw_label(534, 232, "the weights"),
        draw_arrow("M 604 262 H 467", kind="dashed"),
        draw_label(534, 282, "the value of o'"),
        draw_arrow("M 604 46 H 467"),
        draw_arrow("M 466 68 H 603", kind="dashed"),
        draw_label(534, 90, "its entropy"),
    ]
    return make_svg("The networks of SAC", 860, 296, parts)


def draw_hindsight() -> str:
    """Draw a step of an episode, its own goal, and goals that the agent reached later."""
    xs, y = [70 + 84 * i for i in range(9)], 120
    dots = [f'<circle cx="{x}" cy="{y}" r="6" fill="{INK}"/>' for x in xs]
    parts = [
        draw_label(
            430, 22, "what the agent did in one episode; it never came to the goal that was set"
        ),
        *dots,
        *(draw_arrow(f"M {x + 8} {y} H {x + 76}") for x in xs[:-1]),
        draw_box(800, 34, 108, GRAY, "the goal", "not reached"),
        draw_label(xs[2] + 42, y + 26, "this step"),
        draw_arrow(f"M {xs[2] + 42} {y - 6} C {xs[2] + 80} 50 660 44 744 56", kind="dashed"),
        draw_label(560, 90, "under its own goal the step has the reward of a miss"),
    ]
    for later in (4, 6, 7):
        middle = (xs[2] + 42 + xs[later]) // 2
        start = f"M {xs[2] + 42} {y + 34}"
        parts.append(draw_arrow(f"{start} Q {middle} {y + 40 + 14 * later} {xs[later]} {y + 10}"))
    parts += [
        draw_label(
            430,
            232,
            "later states of the episode as its goals, --her_ratio of them, within --her_window",
        ),
        draw_label(
            430,
            249,
            "steps: the environment's compute_reward gives the reward under each",
        ),
    ]
    return make_svg("Hindsight", 860, 262, parts)


DIAGRAMS = {
    "hindsight": draw_hindsight,
    "entries": draw_entries,
    "lag": draw_lag,
    "update": draw_update,
    "replay": draw_replay,
    "burn_in": draw_burn_in,
    "sac": draw_sac,
}
