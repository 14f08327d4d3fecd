"""The diagrams of how a run is run: connections, checkpoints, networks, games, Slurm, planning.

`draw.py` writes them for security.md, keeping.md, networks.md, atari.md, slurm.md, planning.md
and evaluation.md.
"""

from svg_shapes import BLUE, GRAY, GREEN, draw_arrow, draw_box, draw_label, draw_lane, make_svg


def draw_connections() -> str:
    """Draw which processes connect to which, and how each connection is protected."""
    parts = [
        draw_box(110, 36, 190, GRAY, "frontend", "your keys stay here"),
        draw_box(400, 36, 200, GRAY, "SSH server of each host", "the frontend logs in as you"),
        draw_arrow("M 206 58 H 298"),
        draw_label(252, 50, "SSH"),
        draw_box(110, 150, 190, GREEN, "actor, another host", "the actors' credentials"),
        draw_box(110, 246, 190, GREEN, "actor, same account", "on the learner's machine"),
        draw_box(400, 150, 200, GRAY, "the learner's front", "verifies certificates"),
        draw_box(690, 150, 220, BLUE, "learner 0", "TensorFlow, at a Unix socket"),
        draw_box(690, 270, 220, BLUE, "learner 1, another host", "with a front of its own"),
        draw_arrow("M 206 178 H 298"),
        draw_label(252, 170, "TLS 1.3"),
        draw_arrow("M 501 178 H 578"),
        draw_label(540, 170, "relayed"),
        draw_arrow("M 206 270 C 420 270 480 240 578 196"),
        draw_label(420, 300, "Unix socket, mode 0700"),
        draw_arrow("M 690 206 V 268", both=True, kind="dashed"),
        draw_label(596, 240, "gradients:"),
        draw_label(596, 257, "not encrypted"),
        draw_box(690, 36, 220, GRAY, "a stranger", "no certificate: refused"),
        draw_arrow("M 600 92 L 470 148", kind="dashed"),
        draw_label(486, 116, "the learner's port"),
    ]
    return make_svg("The connections of a run", 860, 342, parts)


def draw_checkpoints() -> str:
    """Draw the checkpoints that are written along a run, and those that are kept."""
    begin, step, count, every = 56, 38, 20, 4
    best, newest = 13, (17, 18, 19)
    tenths = tuple(range(0, count, every))
    parts = [
        draw_label(430, 22, "checkpoints along a run, one every --save_checkpoint_secs"),
        draw_arrow(f"M 30 74 H {begin + step * count + 20}"),
        draw_label(begin + step * count - 10, 104, "frames"),
    ]
    for i in range(count):
        kept = BLUE if i in newest else GREEN if i == best else GRAY if i in tenths else "white"
        line = "" if kept != "white" else ' style="stroke-dasharray: 3 3; rx: 4"'
        box = f'<rect x="{begin + step * i}" y="56" width="26" height="36" fill="{kept}"{line}/>'
        parts.append(box)
    parts += [
        draw_label(begin + step * 8 + 13, 130, "grey: the first after each tenth of the run"),
        draw_label(begin + step * best + 13, 48, "the best"),
        draw_label(begin + step * 18 + 13, 48, "the newest three"),
        draw_label(
            begin + step * 8 + 13, 148, "dashed: deleted once newer ones are complete on the disk"
        ),
    ]
    return make_svg("The checkpoints that are kept", 860, 164, parts)


def draw_network() -> str:
    """Draw the parts of a network, from an observation to the heads that an algorithm adds."""
    parts = [
        draw_box(110, 30, 190, GRAY, "images", "read by their contrast"),
        draw_box(110, 110, 190, GRAY, "numbers", "normalised, if asked"),
        draw_box(110, 190, 190, GRAY, "choices", "one-hot, or embedded"),
        draw_box(350, 110, 170, GREEN, "torso", "convolutions, or an", "MLP: --agent_name"),
        draw_box(550, 110, 150, GREEN, "core", "an LSTM, or", "none"),
        draw_box(752, 30, 180, BLUE, "policy", "of IMPALA, PPO, SAC"),
        draw_box(752, 110, 180, BLUE, "value", "of IMPALA, PPO"),
        draw_box(752, 190, 180, BLUE, "values of actions", "of DQN, R2D2, SAC"),
        draw_arrow("M 206 62 L 263 126"),
        draw_arrow("M 206 142 H 263"),
        draw_arrow("M 206 216 L 263 166"),
        draw_arrow("M 436 146 H 473"),
        draw_arrow("M 626 136 L 660 66"),
        draw_arrow("M 626 146 H 660"),
        draw_arrow("M 626 156 L 660 212"),
        draw_label(450, 226, "green: nets/; blue: heads that the algorithm adds"),
    ]
    return make_svg("The parts of a network", 860, 262, parts)


def draw_game() -> str:
    """Draw a game of Atari with three lives: its training episodes, and a step of four frames."""
    parts = ['<text x="60" y="60" font-weight="bold">game</text>']
    parts.append(draw_lane(110, 32, 800, GRAY, "one game: episode_return is its raw score"))
    parts.append('<text x="60" y="128" font-weight="bold">episodes</text>')
    for begin, end, life in ((110, 330, 1), (330, 600, 2), (600, 800, 3)):
        parts.append(draw_lane(begin, 100, end, GREEN, f"life {life}"))
    parts += [
        draw_label(330, 170, "a lost life ends the return,"),
        draw_label(330, 187, "not the game"),
        draw_arrow("M 330 156 V 150"),
        draw_label(740, 170, "the last one: a reset follows"),
        '<text x="60" y="238" font-weight="bold">a step</text>',
        *(draw_lane(110 + 80 * i, 210, 190 + 80 * i, BLUE, f"frame {i + 1}") for i in range(4)),
        draw_label(630, 230, "one action for four frames; the observation is the"),
        draw_label(630, 247, "larger pixel of the last two, and the network reads four"),
    ]
    return make_svg("A game, its episodes and a step", 860, 274, parts)


def draw_slurm() -> str:
    """Draw the components of a Slurm job."""
    parts = [
        draw_box(110, 100, 180, GRAY, "workers.csv", "--emit=slurm", "prints run.sbatch"),
        draw_box(400, 20, 240, BLUE, "component 0: learners", "a task for each row, GPUs"),
        draw_box(400, 110, 240, GREEN, "component 1: actors", "count tasks for each row"),
        draw_box(400, 200, 240, GRAY, "component 2: evaluators", "if there are any"),
        draw_box(
            716,
            100,
            230,
            GRAY,
            "a folder of all nodes",
            "project, .venv, LOGDIR:",
            "addresses, token, run",
        ),
        draw_arrow("M 201 120 L 278 56"),
        draw_arrow("M 201 138 H 278"),
        draw_arrow("M 201 156 L 278 222"),
        draw_arrow("M 521 52 L 600 112", both=True),
        draw_arrow("M 521 138 H 600", both=True),
        draw_arrow("M 521 222 L 600 162", both=True),
        draw_arrow("M 400 109 V 78"),
        draw_label(452, 98, "unrolls, TLS"),
    ]
    return make_svg("A run as one Slurm job", 860, 270, parts)


def draw_plan() -> str:
    """Draw the limits of a worker set, the least of which is its rate."""
    parts = [
        draw_box(
            120, 40, 200, GREEN, "actors can supply", "1 / (environment +", "inference + the rest)"
        ),
        draw_box(430, 40, 200, GRAY, "links can carry", "unrolls up,", "parameters down"),
        draw_box(740, 40, 200, BLUE, "the learner can train", "one update after", "the other"),
        draw_arrow("M 221 76 H 328"),
        draw_arrow("M 531 76 H 638"),
        draw_label(275, 68, "steps/s"),
        draw_label(585, 68, "steps/s"),
        draw_box(275, 160, 300, GRAY, "cores of a host with both", "shared, and slower when busy"),
        draw_box(712, 160, 250, GRAY, "other worker sets", "updates wait for the slowest"),
        draw_arrow("M 180 159 L 140 114", kind="dashed"),
        draw_arrow("M 426 168 L 646 116", kind="dashed"),
        draw_arrow("M 740 159 V 114", kind="dashed"),
        draw_label(430, 244, "the rate of a worker set is the least of its limits: the bottleneck"),
    ]
    return make_svg("The model of the planner", 860, 258, parts)


def draw_evaluation() -> str:
    """Draw games of three environments that play beside each other, three games each."""
    parts = [draw_label(430, 20, "nine games, three for each environment, whatever they take")]
    lengths = ((90, 60, 110), (240, 130, 300), (160, 210, 80))
    for row, games in enumerate(lengths):
        top, begin = 36 + 62 * row, 130
        parts.append(f'<text x="66" y="{top + 29}">environment {row}</text>')
        for number, length in enumerate(games):
            parts.append(draw_lane(begin, top, begin + length, GREEN, f"game {number + 1}"))
            begin += length
    parts += [
        '<path class="dashed" d="M 520 30 V 216"/>',
        draw_label(
            520, 234, "if the first games to end were taken, the long ones would be missing here"
        ),
    ]
    return make_svg("The games of a test", 860, 248, parts)


DIAGRAMS = {
    "evaluation": draw_evaluation,
    "connections": draw_connections,
    "checkpoints": draw_checkpoints,
    "network": draw_network,
    "game": draw_game,
    "slurm": draw_slurm,
    "plan": draw_plan,
}
