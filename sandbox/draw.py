"""Draw the diagrams of the pages.

The diagrams are processes.svg (README.md), step.svg (multi_learner.md), unroll.svg
(CONTRIBUTING.md), algorithm.svg (own_algorithm.md), and those of `draw_learning.py` and
`draw_running.py`.

python sandbox/draw.py [FOLDER]
"""

import sys
from pathlib import Path

import draw_learning
import draw_running
from svg_shapes import BLUE, GRAY, GREEN, draw_arrow, draw_box, draw_label, draw_lane, make_svg


def draw_processes() -> str:
    """Draw the frontend at the top, the learners in the middle and their actors below."""
    learners, actors = (230, 630), (90, 230, 370, 560, 700)
    parts = [
        draw_box(
            430,
            16,
            380,
            GRAY,
            "run_experiment_mm_raw.py",
            "reads a CSV of hosts, starts all processes",
        ),
        draw_box(learners[0], 160, 190, BLUE, "learner 0", "GPU 0: gradients from unrolls"),
        draw_box(learners[1], 160, 190, BLUE, "learner 1", "GPU 1: gradients from unrolls"),
        draw_arrow("M 327 188 H 533", both=True),
        draw_label(430, 178, "Horovod: gradients,"),
        draw_label(430, 206, "all-reduced (mpirun)"),
        draw_arrow("M 330 71 L 232 158", kind="dashed"),
        draw_arrow("M 530 71 L 628 158", kind="dashed"),
        draw_label(430, 122, "in the background; over SSH on other hosts"),
    ]
    for i, x in enumerate(actors):
        learner = learners[0] if i < 3 else learners[1]
        parts.append(draw_box(x, 330, 120, GREEN, f"actor {i}", "acts on a CPU"))
        parts.append(draw_arrow(f"M {x} 329 L {learner + (x - learner) // 3} 217", both=True))
    parts += [
        draw_label(430, 258, "up: unrolls"),
        draw_label(430, 276, "down: parameters"),
        draw_label(430, 294, "(distributed TensorFlow)"),
        draw_label(400, 412, "a worker set: one learner and its actors; actors may join and leave"),
    ]
    return make_svg("The processes of impala_mm", 860, 430, parts)


def draw_step() -> str:
    """Draw one step of two learners over time, with the points where they synchronise."""
    parts = [draw_label(430, 24, "one step over time; learner 1 is slower in this example")]
    rows = (60, 190)
    ends = (330, 390)  # where each learner's backward pass ends
    for learner, (top, end) in enumerate(zip(rows, ends, strict=True)):
        parts += [
            f'<text x="62" y="{top + 30}" font-weight="bold">learner {learner}</text>',
            draw_lane(112, top, 190, BLUE, "forward"),
            draw_lane(190, top, end, BLUE, "backward"),
            draw_lane(end, top, 420, GRAY, "waits" if learner == 0 else ""),
            draw_lane(420, top, 510, GREEN, "clip, apply"),
            draw_lane(510, top, 590, GREEN, "publish"),
            draw_lane(590, top, 740, BLUE, "the next step"),
        ]
    for x in (255, 300, 345, 405):
        parts.append(draw_arrow(f"M {x} 108 V 188", both=True))
    parts += [
        draw_label(498, 134, "each gradient is averaged"),
        draw_label(498, 151, "when it is ready, the last"),
        draw_label(498, 168, "layer's first"),
        draw_arrow("M 590 108 V 188", both=True, kind="dashed"),
        draw_label(690, 134, "agreed during the step:"),
        draw_label(690, 151, "every learner has a batch,"),
        draw_label(690, 168, "and none stops"),
        draw_label(
            430, 272, "every learner has the same averages, and so the same norm, clipping and"
        ),
        draw_label(430, 290, "update: the variables stay identical, bit for bit"),
        draw_arrow("M 465 258 V 240", kind="dashed"),
    ]
    return make_svg("One step of two learners", 860, 306, parts)


_PATH = (  # the path of an unroll: file, function, the data's form at this point
    ("environments/gym_vector.py", "GymVector.step", "Step: reward [E], observation [E, ...]"),
    ("actor/stepper.py", "EnvironmentStepper.finish_step", "the same; failed ones were reset"),
    ("data/unroll_writer.py", "UnrollWriter.write", "entries [E, T+1, ...], as bytes"),
    ("actor/actor.py", "UnrollLoop.play", "E unrolls: bytes, and the policy version"),
    ("actor/learner_link.py", "LearnerLink._next_batch, _send", "compressed; header [18]"),
    ("transport/client.py", "Client.enqueue", "one call, or chunks of 3 MiB before it"),
    ("transport/delivery.py", "UnrollReceiver.enqueue", "into the queue: (bytes, version)"),
    ("learner/sources/batch_source.py", "PrefetchedSource.next", "Batch: unrolls [T+1, B, ...]"),
    ("learner/lockstep.py", "Lockstep.next", "the same, when all learners have one"),
    ("learner/train_step.py", "TrainStep", "one graph for the complete update"),
    ("algorithms/impala/algorithm.py", "Impala.update", "loss [], a gradient for each variable"),
    ("distributed/gradients.py", "GradientReducer.apply", "averaged, clipped, applied"),
)


def draw_unroll() -> str:
    """Draw the path of an unroll through the actor's and the learner's files, and the way back."""
    half, height, left, right = len(_PATH) // 2, 92, 225, 655
    parts = [draw_label(left, 24, "an actor"), draw_label(right, 24, "a learner")]
    for i, (file, function, data) in enumerate(_PATH):
        row = i if i < half else len(_PATH) - 1 - i
        x, y, fill = (
            (left, 38 + height * row, GREEN) if i < half else (right, 38 + height * row, BLUE)
        )
        parts.append(draw_box(x, y, 310, fill, f"{i + 1}  {file}", function, data))
        if i < half - 1:
            parts.append(draw_arrow(f"M {x} {y + 73} V {y + height - 2}"))
        elif i >= half and row:
            parts.append(draw_arrow(f"M {x} {y - 1} V {y - height + 74}"))
    bottom, policy = 38 + height * (half - 1) + 36, 38 + height * 3 + 20
    parts += [
        draw_arrow(f"M 382 {bottom} H 498"),
        draw_label(440, bottom - 10, "gRPC"),
        draw_arrow(f"M 498 {policy - height} L 382 {policy}", kind="dashed"),
        draw_label(440, policy - height - 41, "the way back:"),
        draw_label(440, policy - height - 24, "parameters, one"),
        draw_label(440, policy - height - 7, "vector of bytes"),
    ]
    return make_svg("The path of an unroll", 860, 38 + height * half, parts)


def draw_algorithm() -> str:
    """Draw what an algorithm defines, in blue and green, and what passes between the parts."""
    left, middle, right, wide = 150, 430, 710, 236
    rows = (30, 150, 270)
    parts = [
        draw_box(left, rows[0], wide, GRAY, "environments", "rewards, observations, masks"),
        draw_box(left, rows[1], wide, GREEN, "act", "entry, core state: actions, extras"),
        draw_box(left, rows[2], wide, GREEN, "unroll", "T + overlap entries, start"),
        draw_box(middle, rows[2], 200, BLUE, "source", "optional: replay, a file"),
        draw_box(right, rows[2], wide, BLUE, "update", "batch: metrics, priorities"),
        draw_box(right, rows[1], wide, GRAY, "exchange", "averages over all learners"),
        draw_box(right, rows[0], wide, BLUE, "variables", "trained, carried, acting, local"),
        draw_box(middle, rows[0], 200, GREEN, "judge", "for tests and videos"),
    ]
    half = wide // 2
    parts += [
        draw_arrow(f"M {left - 30} {rows[0] + 56} V {rows[1] - 2}"),
        draw_label(left - 64, rows[1] - 28, "entries"),
        draw_arrow(f"M {left + 30} {rows[1] - 1} V {rows[0] + 57}"),
        draw_label(left + 64, rows[1] - 28, "actions"),
        draw_arrow(f"M {left} {rows[1] + 56} V {rows[2] - 2}"),
        draw_arrow(f"M {left + half + 1} {rows[2] + 27} H {middle - 102}"),
        draw_label((left + half + middle - 100) // 2, rows[2] + 17, "unrolls"),
        draw_arrow(f"M {middle + 101} {rows[2] + 18} H {right - half - 2}"),
        draw_label((middle + 100 + right - half) // 2, rows[2] + 8, "batches"),
        draw_arrow(f"M {right - half - 1} {rows[2] + 40} H {middle + 102}", kind="dashed"),
        draw_label((middle + 100 + right - half) // 2, rows[2] + 56, "priorities"),
        draw_arrow(f"M {right} {rows[2] - 1} V {rows[1] + 57}"),
        draw_label(right + 46, rows[2] - 28, "gradients"),
        draw_arrow(f"M {right} {rows[1] - 1} V {rows[0] + 57}"),
        draw_label(right + 46, rows[1] - 28, "steps"),
        draw_arrow(f"M {right - half - 1} {rows[0] + 27} H {middle + 102}", kind="dashed"),
        draw_arrow(
            f"M {right - half + 20} {rows[0] + 56} L {left + half + 2} {rows[1] + 24}",
            kind="dashed",
        ),
        draw_label(middle + 10, rows[1] + 34, "the variables for acting, after each update"),
    ]
    return make_svg("An algorithm and what calls it", 860, 345, parts)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    diagrams = {
        "processes": draw_processes,
        "step": draw_step,
        "unroll": draw_unroll,
        "algorithm": draw_algorithm,
    }
    for name, draw in (diagrams | draw_learning.DIAGRAMS | draw_running.DIAGRAMS).items():
        (folder / f"{name}.svg").write_text(draw())
        print(f"wrote {folder / name}.svg")
