"""The commands whose learning curves this project publishes, and what was recorded of them.

Each command is `python experiment.py` with a preset or an algorithm, some flags and a seed. It
depends on no other configuration: every setting stands in impala_mm/presets/, or is its algorithm's
default. A recorded curve is sandbox/reference/NAME-SEED.json: the command, commit, date, machine
and result, and the return at about 200 points with their frames and seconds.
"""

import importlib.util
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.config import command_line, flags
from impala_mm.config.settings import Config
from impala_mm.records.run_contents import drop_replaced, read_json_lines, read_records
from impala_mm.runtime import machine, provenance

ROOT = Path(__file__).resolve().parents[2]
REFERENCE_FOLDER = ROOT / "sandbox" / "reference"
_CURVE_POINTS = 200
_PAUSE = 30.0  # seconds between two rows, of which a run writes one every 2 s, if it was suspended


class Package(NamedTuple):
    """A package that an environment needs besides this project."""

    name: str  # as pip reads it; several are separated by spaces
    module: str  # by which it is recognised


class Task(NamedTuple):
    """An environment."""

    random: float  # mean return of a policy that draws evenly among the allowed actions
    package: Package | None = None


class Run(NamedTuple):
    """A documented command and the mean return that it must reach."""

    task: Task
    goal: float  # mean unclipped return of the last 100 games
    flags: str
    published: tuple[float, float] | None = None  # mean and deviation that others publish
    published_steps: str = ""  # after how many steps, where this run has another number
    beside: str = ""  # the run whose curves this one's are drawn beside, in grey

    @property
    def missing(self) -> str:
        """The package that the command needs and that is not installed, or an empty string."""
        package = self.task.package
        is_there = not package or importlib.util.find_spec(package.module)
        return "" if is_there or not package else package.name


_MUJOCO = Package("gymnasium[mujoco]", "mujoco")
_MINIGRID = Package("minigrid", "minigrid")
_ROBOTICS = Package("gymnasium-robotics mujoco<3.12", "gymnasium_robotics")

_ENVPOOL = Package("envpool", "envpool")
_DMC = Package("dm-control mujoco<4", "dm_control")

_FETCH = Task(-49.43, _ROBOTICS)
_VIZDOOM = Task(-192, Package("vizdoom", "vizdoom"))
_BABYAI = Task(0.16, _MINIGRID)
_EMPTY_GOAL = Task(0.18, _ENVPOOL)
_RUN_TO_SCORE = Task(-0.02, _ENVPOOL)
_REACH = Task(916, Package("metaworld", "metaworld"))
_COINRUN = Task(2.3, _ENVPOOL)
_NETHACK = Task(19.8, Package("nle", "nle"))
_WALK = Task(32.7, _DMC)
_RUN = Task(3.7, _DMC)
_CRAFTER = Task(2, Package("crafter", "crafter"))
_CATCH = Task(-0.61)
_CARTPOLE = Task(21.77)
_ACROBOT = Task(-500)
_MEMORY = Task(0.5)
_PONG = Task(-20.7)
_BREAKOUT = Task(1.7)
_BEAMRIDER = Task(364)
_HARVEST = Task(0.57)
_TICTACTOE = Task(-0.01)
_TAXI = Task(-187)
_PENDULUM = Task(-1192)
_EMPTY = Task(0.17, _MINIGRID)
_DOORKEY = Task(0.02, _MINIGRID)
_HIGHWAY = Task(7.8, Package("highway-env", "highway_env"))
_LANDER = Task(-181, Package("gymnasium[box2d]", "Box2D"))
_INVERTED = Task(5.1, _MUJOCO)
_HOPPER = Task(18, _MUJOCO)
_WALKER = Task(1.9, _MUJOCO)
_CHEETAH = Task(-281, _MUJOCO)

# The defaults of policy gradients, without a preset.
_DEFAULTS = "--level_name=CartPole-v1 --total_environment_frames=500000"
_CATEGORICAL = "--value_distribution=categorical --v_min=0 --v_max=100"
_PPO_GAME = "--preset=atari-ppo --agent_name=ShallowConvAgent"
_SAC = "--preset=mujoco-sac --num_actors=1 --intra_op_threads=2"
# As many steps as REDQ and DroQ need for what SAC needs hundreds of thousands for.
_FEW = "--num_actors=1 --level_name=Hopper-v4 --total_environment_frames=2e4"
_DMC_SAC = "--preset=dmc-sac --num_actors=1"
_SOLVED = "--stop_at_return=475 --num_actors=1"
_IMPALA_GAME = "--preset=breakout-impala"
_2M = "--num_actors=1 --total_environment_frames=8000000"  # steps of four frames
_TWO = "--num_learners=2 --batch_size=8 --minibatches=32"
_FOUR = "--num_learners=4 --batch_size=4 --minibatches=32 --num_actors=4 --num_envs=4"

DOCUMENTED_RUNS = {
    # catch, CartPole-v1, Harvest, tic-tac-toe and InvertedPendulum-v5 stop at their own reward
    # threshold; tic-tac-toe may not reach it.
    "catch": Run(_CATCH, 0.9, "--preset=catch-impala"),
    "cartpole": Run(_CARTPOLE, 475, "--preset=classic-impala"),
    # The agent must remember the first observation until the last step.
    "memory": Run(_MEMORY, 0.95, "--preset=memory-impala"),
    "gtrxl-memory": Run(_MEMORY, 0.95, "--preset=memory-impala --agent_name=MLPGTrXLAgent"),
    # The run ends at a mean return of 20 (the maximum is 21), or after 8 million frames.
    "pong": Run(
        _PONG,
        18,
        "--preset=atari-impala --total_environment_frames=8000000 --stop_at_return=20 "
        "--entropy_cost=0.003",
    ),
    "pong-ppo": Run(_PONG, 18, "--preset=pong-ppo --stop_at_return=20"),
    "breakout": Run(_BREAKOUT, 200, "--preset=breakout-impala"),
    "harvest": Run(_HARVEST, 13.5, "--preset=harvest-impala"),
    "tictactoe": Run(_TICTACTOE, 0.7, "--preset=tictactoe-impala"),
    "pendulum": Run(_PENDULUM, -200, "--preset=pendulum-impala"),
    # Learning values of actions, with replay. Pendulum's 100 games are all that the run plays.
    "dqn-cartpole": Run(_CARTPOLE, 440, f"--preset=classic-dqn {_SOLVED}"),
    "c51-cartpole": Run(_CARTPOLE, 400, f"--preset=classic-dqn {_CATEGORICAL} {_SOLVED}"),
    "r2d2-memory": Run(_MEMORY, 0.8, "--preset=memory-r2d2"),
    # The mean is that of all environments, of which a few explore; the policy is better.
    "r2d2-pong": Run(_PONG, 10, "--preset=atari-r2d2 --num_actors=1"),
    "pqn-cartpole": Run(_CARTPOLE, 475, f"--algorithm=pqn {_DEFAULTS}"),
    "sac-pendulum": Run(_PENDULUM, -450, "--preset=pendulum-sac"),
    "mpo-pendulum": Run(_PENDULUM, -650, "--preset=pendulum-mpo"),
    "a2c-cartpole": Run(_CARTPOLE, 475, f"--algorithm=a2c {_DEFAULTS}"),
    "vpg-cartpole": Run(_CARTPOLE, 475, f"--algorithm=vpg {_DEFAULTS}"),
    "awr-cartpole": Run(_CARTPOLE, 400, f"--algorithm=awr {_DEFAULTS}"),
    "vmpo-cartpole": Run(_CARTPOLE, 475, f"--algorithm=vmpo {_DEFAULTS}"),
    # Nobody finds the only reward by chance.
    "stairs": Run(
        Task(0.0),
        0.9,
        "--algorithm=ppo --level_name=sandbox.small_games:Stairs-v0 --rnd_weight=1 "
        "--num_actors=1 --total_environment_frames=100000 --stop_at_return=0.95",
    ),
    "taxi": Run(_TAXI, 5, "--preset=taxi-impala"),
    # Environments of other packages.
    "minigrid": Run(_EMPTY, 0.9, "--preset=minigrid-impala"),
    "doorkey": Run(_DOORKEY, 0.9, "--preset=doorkey-ppo"),
    "highway": Run(_HIGHWAY, 17, "--preset=highway-ppo"),
    # Each of the 50 steps costs 1 until the hand is where it should be.
    "fetchreach": Run(_FETCH, -5, "--preset=fetch-sac --num_actors=1"),
    "babyai": Run(_BABYAI, 0.85, "--preset=babyai-ppo --num_actors=1"),
    "ppo-dmc-walker": Run(_WALK, 350, "--preset=mujoco-ppo --level_name=dmc:walker-walk"),
    "football": Run(_EMPTY_GOAL, 0.9, "--preset=football-impala"),
    "vizdoom": Run(_VIZDOOM, 70, "--preset=vizdoom-ppo"),
    "ppo-dmc-cheetah": Run(_RUN, 100, "--preset=mujoco-ppo --level_name=dmc:cheetah-run"),
    "coinrun": Run(_COINRUN, 6, "--preset=coinrun-ppo"),
    "metaworld": Run(_REACH, 3000, "--preset=metaworld-sac --num_actors=1"),
    "sac-dmc-walker": Run(_WALK, 600, f"{_DMC_SAC} --level_name=dmc:walker-walk"),
    "sac-dmc-cheetah": Run(_RUN, 170, f"{_DMC_SAC} --level_name=dmc:cheetah-run"),
    "crafter": Run(_CRAFTER, 2.7, "--preset=crafter-ppo"),
    "nethack": Run(_NETHACK, 25, "--preset=nethack-impala"),
    "sac-few-hopper": Run(_HOPPER, 230, f"{_FEW} --preset=mujoco-sac"),
    "droq-hopper": Run(_HOPPER, 280, f"{_FEW} --preset=mujoco-sac,droq", beside="sac-few-hopper"),
    "redq-hopper": Run(_HOPPER, 280, f"{_FEW} --preset=mujoco-sac,redq", beside="sac-few-hopper"),
    "td3-pendulum": Run(
        _PENDULUM,
        -600,
        "--algorithm=td3 --level_name=Pendulum-v1 --random_steps=1000 --num_actors=1 "
        "--total_environment_frames=2e4",
    ),
    # As far as seven minutes go: a goal is rarely seen in so few steps.
    "football-run": Run(
        _RUN_TO_SCORE,
        -0.1,
        "--preset=football-impala --level_name=envpool:gfootball/academy_run_to_score-v1",
    ),
    "lunarlander": Run(_LANDER, 190, "--preset=lunarlander-ppo"),
    "invertedpendulum": Run(
        _INVERTED,
        900,
        "--preset=mujoco-impala --level_name=InvertedPendulum-v5 --total_environment_frames=0",
    ),
    "hopper": Run(_HOPPER, 600, "--preset=mujoco-impala --level_name=Hopper-v5"),
    "halfcheetah": Run(_CHEETAH, 1000, "--preset=mujoco-impala --level_name=HalfCheetah-v5"),
    # With the results that CleanRL publishes for as many steps of the same levels:
    # https://docs.cleanrl.dev/rl-algorithms/ppo
    "ppo-halfcheetah": Run(_CHEETAH, 2500, "--preset=mujoco-ppo", (1443, 46)),
    # As many steps and optimizer steps of as many environments, divided between learners.
    "two-learners": Run(_CHEETAH, 2500, f"--preset=mujoco-ppo {_TWO}", beside="ppo-halfcheetah"),
    "four-learners": Run(_CHEETAH, 2500, f"--preset=mujoco-ppo {_FOUR}", beside="ppo-halfcheetah"),
    "ppo-walker2d": Run(_WALKER, 1716, "--preset=mujoco-ppo --level_name=Walker2d-v4", (2288, 572)),
    "ppo-hopper": Run(_HOPPER, 2111, "--preset=mujoco-ppo --level_name=Hopper-v4", (2383, 272)),
    "ppo-invertedpendulum": Run(
        _INVERTED, 900, "--preset=mujoco-ppo --level_name=InvertedPendulum-v4", (963, 22)
    ),
    "ppo-cartpole": Run(_CARTPOLE, 475, "--preset=classic-ppo", (490, 6)),
    "ppo-acrobot": Run(_ACROBOT, -90, "--preset=classic-ppo --level_name=Acrobot-v1", (-86, 1)),
    "ppo-pong": Run(
        _PONG,
        19,
        f"{_PPO_GAME} --total_environment_frames=8000000 --entropy_cost=0.005",
        (20.4, 0.2),
        "10M",
    ),
    "ppo-breakout": Run(
        _BREAKOUT,
        300,
        "--preset=atari-ppo --level_name=BreakoutNoFrameskip-v4 --subtract_mean_image=false",
        (415, 28),
    ),
    "ppo-beamrider": Run(
        _BEAMRIDER, 1431, f"{_PPO_GAME} --level_name=BeamRiderNoFrameskip-v4", (1916, 485)
    ),
    # Not recorded yet, so these goals are guesses. IMPALA's deep network; 2.5 hours are 222
    # steps/s. No result after as many steps is published.
    "breakout-deep": Run(
        _BREAKOUT,
        300,
        f"{_IMPALA_GAME} --agent_name=ResNetAgent --total_environment_frames=8000000",
    ),
    "breakout-deep-lstm": Run(
        _BREAKOUT,
        300,
        f"{_IMPALA_GAME} --agent_name=ResNetLSTMAgent --total_environment_frames=8000000",
    ),
    # Of R2D2 none is published after 2 million steps, either. Dopamine's are means of its five
    # runs' games in the iteration that ends then (its repository's baselines/atari/data), of DQN
    # those with Adam: https://github.com/google/dopamine
    "r2d2-breakout": Run(
        _BREAKOUT, 30, f"--preset=atari-r2d2 --level_name=BreakoutNoFrameskip-v4 {_2M}"
    ),
    "rainbow-pong": Run(_PONG, 8.9, f"--preset=rainbow,atari-sticky {_2M}", (10.7, 1.8)),
    "rainbow-breakout": Run(
        _BREAKOUT,
        30.8,
        f"--preset=rainbow,atari-sticky --level_name=BreakoutNoFrameskip-v4 {_2M}",
        (32.4, 1.6),
    ),
    "dqn-breakout": Run(
        _BREAKOUT,
        35.4,
        f"--preset=dqn,atari-sticky --level_name=BreakoutNoFrameskip-v4 {_2M}",
        (38.3, 2.9),
    ),
    # https://docs.cleanrl.dev/rl-algorithms/sac
    "sac-halfcheetah": Run(_CHEETAH, 8211, _SAC, (9635, 1424)),
    "sac-hopper": Run(_HOPPER, 1967, f"{_SAC} --level_name=Hopper-v4", (2310, 343)),
    "sac-walker2d": Run(_WALKER, 2680, f"{_SAC} --level_name=Walker2d-v4", (3591, 911)),
    # https://docs.cleanrl.dev/rl-algorithms/td3
    "td3-halfcheetah": Run(_CHEETAH, 7940, "--preset=mujoco-td3 --num_actors=1", (9018, 1078)),
}

# Atari-5. Goals of games that are not recorded yet are guesses: CleanRL's PPO after 10M steps
# (https://docs.cleanrl.dev/rl-algorithms/ppo, ppo_atari_envpool_xla_jax.py), for IMPALA, too, whose
# own published results are of https://github.com/vwxyzjn/cleanba (static/cleanba/main_10CPU.csv).
ATARI_5 = {
    "BattleZone": (Task(2360), (24284, 1842), (30307, 3720)),
    "DoubleDunk": (Task(-18.6), (-6.8, 0.2), (-2.9, 3.0)),
    "NameThisGame": (Task(2292.3), (5750, 181), (15198, 982)),
    "Phoenix": (Task(761.4), (14474, 1795), (43734, 3990)),
    "Qbert": (Task(163.9), (17246, 605), (22199, 727)),
}
# Of IMPALA's recorded runs that stay below it.
_GOALS = {"BattleZone": 10000, "DoubleDunk": -14, "Phoenix": 6000, "Qbert": 10000}
for _game, (_task, _ppo, _impala) in ATARI_5.items():
    _level = f"--level_name={_game}NoFrameskip-v4"
    DOCUMENTED_RUNS |= {
        f"ppo-{_game.lower()}": Run(_task, _ppo[0] - _ppo[1], f"--preset=atari-ppo {_level}", _ppo),
        f"impala-{_game.lower()}": Run(
            _task, _GOALS.get(_game, _ppo[0]), f"{_IMPALA_GAME} {_level}", _impala, "50M"
        ),
    }


def full_command(name: str, seed: int, *more: str) -> list[str]:
    """Return the arguments of the command; pages and recorded files contain them, quoted."""
    words = [*DOCUMENTED_RUNS[name].flags.split(), f"--seed={seed}", *more]
    return ["python", "experiment.py", *words]


def settings(name: str) -> Config:
    """Return the settings of a command."""
    return settings_of(DOCUMENTED_RUNS[name].flags)


def settings_of(arguments: str) -> Config:
    """Return the settings that experiment.py has with these arguments."""
    (config,), _ = command_line.parse(["experiment.py", *shlex.split(arguments)], "", Config)
    return config


def run_documented(name: str, seed: int, logdir: Path, *more: str) -> int:
    """Run the command, with its output on this terminal, and return its exit code.

    Raises KeyboardInterrupt if Ctrl-C stopped the run, once it has saved its state.
    """
    arguments = full_command(name, seed, *more, f"--logdir={logdir}")
    print(f"$ {shlex.join(arguments)}", flush=True)
    program = importlib.util.find_spec("experiment")  # of the clone, or of the installed package
    assert program
    assert program.origin
    # At Ctrl-C, `subprocess.run` would kill the run while it saves its state.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run([sys.executable, program.origin, *arguments[2:]], check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    if code.returncode == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    return code.returncode


def run_seed(name: str, seed: int, resume: bool, *more: str) -> Path:
    """Run the command with this seed to its end, and return the run's folder.

    A run of the same code that was interrupted continues; with `resume`, the newest run of any.
    """
    logdir = ROOT / "runs" / f"{name}-{seed}-{provenance.revision()}"
    if resume:
        begun = logdir.parent.glob(f"{name}-{seed}-*/starts.jsonl")
        newest = max(begun, key=lambda path: path.stat().st_mtime, default=None)
        if not newest:
            flags.refuse(f"--resume: {logdir.parent} has no run of {name} with seed {seed}")
        logdir = newest.parent
    if code := run_documented(name, seed, logdir, *more):
        flags.refuse(f"the run exited with code {code}; nothing was recorded")
    return logdir


def save_reference(name: str, logdir: Path, alone: bool, *more: str) -> None:
    """Write the run in `logdir` as the reference for its name and seed."""
    played = without_pauses(drop_replaced(read_json_lines(logdir / "metrics.jsonl")))
    rows = [row for row in played if "episode_return" in row]
    if not rows:
        flags.refuse(f"no game of the run in {logdir} has ended; nothing was recorded")
    last = rows[-1]
    starts = read_json_lines(logdir / "starts.jsonl")
    # A run that was over may have been started again, which trained nothing.
    starts = [start for start in starts if start["frames"] < last["frames"]]
    start = starts[-1]
    seed = start["settings"]["seed"]
    thinned = [*rows[:: max(1, len(rows) // _CURVE_POINTS)], last]
    reference: dict[str, Any] = {
        "name": name,
        "command": shlex.join(full_command(name, seed, *more)),
        "seed": seed,
        "commit": start["revision"],
        "date": start["time"][:10],
        "machine": describe_machine(),
        "alone": alone,
        "episode_return": last["episode_return"],
        "frames": last["frames"],
        "steps": last["steps"],
        "seconds": last["seconds"],
        "steps_per_second": last["steps"] / last["seconds"],
        **_read_test(logdir),
        **({"starts": _describe_starts(starts, played)} if len(starts) > 1 else {}),
        "curve": [
            [row["frames"], row["seconds"], round(row["episode_return"], 3)] for row in thinned
        ],
    }
    path = REFERENCE_FOLDER / f"{name}-{seed}.json"
    lines = [f'"{key}": {json.dumps(value)}' for key, value in reference.items()]
    path.write_text("{" + ",\n ".join(lines).replace("], [", "],\n  [") + "}\n")
    reached, frames = reference["episode_return"], reference["frames"]
    print(f"{path.relative_to(ROOT)}: mean return {reached:.2f} after {frames:,.0f} frames")


def without_pauses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with their seconds without those in which the run was suspended.

    The seconds that rows have are those of a clock, which a suspended process does not stop. Those
    between two starts of a run are not among them.
    """
    found, paused, last = [], 0.0, 0.0
    for row in rows:
        gap, last = row["seconds"] - last, row["seconds"]
        paused += gap if gap > _PAUSE else 0.0
        found.append(row | {"seconds": round(row["seconds"] - paused, 3)})
    return found


def _describe_starts(starts: list[dict], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the commit and the date of each start, and the frames and seconds before it."""
    found = []
    for start in starts:
        reached = (row["seconds"] for row in rows if row["frames"] >= start["frames"])
        at = {"frames": start["frames"], "seconds": next(reached, rows[-1]["seconds"])}
        found.append({"commit": start["revision"], "date": start["time"][:10]} | at)
    return found


def _read_test(logdir: Path) -> dict[str, float]:
    """Return the result of the run's last test with the most likely actions, if it has one."""
    tests = [t for t in read_records(logdir / "evaluations.jsonl") if t["deterministic"]]
    if not tests:
        return {}
    return {
        "deterministic_return": tests[-1]["mean"],
        "deterministic_games": len(tests[-1]["returns"]),
    }


def read_references(name: str) -> list[dict]:
    """Read what was recorded of each seed of a command."""
    return [json.loads(p.read_text()) for p in sorted(REFERENCE_FOLDER.glob(f"{name}-[0-9]*.json"))]


def describe_machine() -> str:
    """Describe this machine in the words that recorded curves contain."""
    names = [use.name for use in machine.measure_gpus()]
    return f"{provenance.machine()}, {', '.join(names) or 'no GPU'}"
