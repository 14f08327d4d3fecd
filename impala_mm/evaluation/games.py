"""Complete games, played with a trained policy: raw returns, no end at a lost life, no training.

Copies of the level play in parallel, each a number of games that is fixed beforehand. Taking the
games that end first instead would favour short ones. The jobs `evaluate` and `evaluator` call this
and record the results. `play_games` plays for `recording` and for teachers, too.

The levels of a checkpoint are those that were asked for, else the run's own; a suite's name stands
for all of its levels (`choose_levels`).
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.config import flags
from impala_mm.config.environment_flags import (
    PAST,
    RANDOM,
    SELF,
    opponents_text,
    read_opponents,
)
from impala_mm.config.errors import BadEnvironment
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments import SUITES, from_flags, seeds, types
from impala_mm.environments.faults import FaultLog, indented
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.opponents import Player
from impala_mm.environments.turns import TurnVector
from impala_mm.environments.types import Environments, Step
from impala_mm.evaluation.results import Evaluation, Game
from impala_mm.policy.core import (
    PolicyCore,
    blaming_settings,
    config_for_playing,
    why_unsuitable,
)
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.runtime.log import Say

IDLE_STEPS = 1000  # steps without reward after which a deterministic game of Atari is ended
# Fields of an entry for acting.
_FIELDS_READ = ("action", "reward", "observation", "first", "mask")
NUM_ENVS = 16  # copies of a level that play at the same time, unless a flag says otherwise
_FAULTS = 10  # after which the evaluation is given up


class Unplayable(BadEnvironment):
    """Environments failed too often; the message says how."""


class GameFrame(NamedTuple):
    """One observation as it is shown to viewers."""

    picture: np.ndarray  # uint8 [height, width, 3]
    game: int  # 0 for the first
    action: Any  # a nest of [...], chosen after it; None at a game's end
    episode_return: float  # raw return of the game so far
    # The policy's value estimate, if a viewer needs it: the action's if the algorithm computes it,
    # else that of the observation.
    value: float | None = None
    policy: np.ndarray | None = None  # float32 [A]: probabilities of Discrete actions


class Viewer(Protocol):
    """A viewer, which is shown each observation of copy 0 in turn."""

    needs_policy_output: bool  # whether it needs value and policy, which cost time

    def show(self, frame: GameFrame) -> None:
        """Show the next observation."""

    def close(self) -> None:
        """End the show; there are no more observations."""


class GamePolicy(Protocol):
    """A policy that plays: a `policy.core.PolicyCore`, whose methods these are, or a teacher."""

    def initial_state(self, batch: int) -> Any:
        """Return the recurrent state at the start of `batch` episodes."""

    def entry(self, observation: Any, reward: Any, action: Any, first: Any, mask: Any) -> Entry:
        """Return entries [B, ...] with the fields that acting reads."""

    def step(self, entry: Entry, state: Any, explore: bool) -> tuple[Any, Any, Any]:
        """Return (actions, a nest of arrays [B, ...], next state, extras) for entries [B, ...]."""


KeepPlaying = Callable[[Sequence[Game], int], bool]  # (games, steps so far) -> whether to continue
# (column, its games so far, steps of all columns) -> whether this column has played enough
IsEnough = Callable[[int, int, int], bool]


class Observer:
    """An observer of games while they are played; columns that are `over` [E] play no more."""

    def after_reset(self, step: Step) -> None:
        """See the reset of all environments."""

    def before_step(
        self, step: Step, entry: Entry, state: Any, actions: Any, over: np.ndarray
    ) -> None:
        """See an entry, the policy's state before it, and the actions that it has chosen."""

    def after_step(
        self, step: Step, actions: Any, games: Mapping[int, Game], over: np.ndarray
    ) -> None:
        """See what these actions led to, and the games that have ended by it, by column."""


NOBODY = Observer()


def evaluate_level(
    policy: PolicyCore,
    level_name: str,
    num_episodes: int,
    num_envs: int = NUM_ENVS,
    deterministic: bool = False,
    seed: int = 1,
    no_reward_steps: int | None = None,
    viewers: Callable[[Environments], Sequence[Viewer]] | None = None,
    meanwhile: KeepPlaying = lambda games, steps: True,
    say: Say = lambda message: None,
    load_opponent: Callable[..., Player] | None = None,
) -> Evaluation:
    """Play `num_episodes` games; fewer, without the long ones, once `meanwhile` returns False.

    `no_reward_steps`: steps without reward after which a game is ended; None for the default
    (`IDLE_STEPS` for deterministic Atari, else 0, no limit). `viewers` returns viewers of the
    environments. `load_opponent`: `teachers.opponents.load_player`; None: only `random` plays.
    """
    num_envs = min(num_envs, num_episodes)
    options = from_flags.environment_options(policy.config)
    spec = level_spec(level_name, **options)
    if no_reward_steps is None:
        no_reward_steps = IDLE_STEPS if deterministic and spec.emulator else 0
    options |= {"no_reward_steps": no_reward_steps, "life_loss_ends": False}
    environments = make_environments(
        level_name,
        num_envs,
        seeds.of_test(seed),
        renders=viewers is not None,
        **options,
    )
    if isinstance(environments, TurnVector):
        options["opponents"] = set_opponents(environments, policy.config, seed, load_opponent, say)
    feed = None
    try:
        feed = ViewerFeed(policy, environments, viewers(environments)) if viewers else None
        games = play_games(
            policy,
            environments,
            each_plays(games_per_env(num_episodes, num_envs, environments.spec.agents)),
            explore=not deterministic,
            idle_steps=no_reward_steps,
            observer=feed or NOBODY,
            meanwhile=meanwhile,
            say=say,
        )
    finally:
        with contextlib.closing(environments):
            if feed:
                feed.close()
    return Evaluation(
        level=level_name,
        checkpoint=str(policy.path),
        updates=policy.about.updates,
        frames=policy.about.frames,
        deterministic=deterministic,
        seed=seed,
        num_envs=num_envs,
        options=options,
        scores=spec.scores,
        returns=[game.episode_return for game in games],
        lengths=[game.length for game in games],
        idle=sum(game.idle for game in games),
        results=[game.score for game in games if environments.spec.seats > 1],
    )


def set_opponents(
    environments: TurnVector,
    config: Config,
    seed: int,
    load: Callable[..., Player] | None,
    say: Say,
) -> str:
    """Let the opponents of --opponents play; return who plays, as the flag names it."""
    weights, spec = read_opponents(config.opponents), environments.spec
    if {SELF, PAST} & weights.keys():
        say(f"opponents play at random, since {SELF} and {PAST} play only in a training")
        weights = {RANDOM: 1.0}
    if load is None and weights.keys() != {RANDOM}:
        raise BadEnvironment(f"opponents={config.opponents}: here only {RANDOM} may play")

    def loaded(name: str, entries: int) -> Player:
        assert load
        return load(name, config, spec, entries)

    environments.let_play(weights, loaded, seed)
    return opponents_text(",".join(f"{name}:{share}" for name, share in weights.items()))


def games_per_env(num_games: int, num_envs: int, agents: int = 1) -> np.ndarray:
    """Return how many games each column plays, int64 [E]; with several agents, the first of them.

    The other columns of an environment have 0.
    """
    each, more = divmod(num_games, num_envs)
    games = np.zeros(num_envs * agents, np.int64)
    games[::agents] = each + (np.arange(num_envs) < more)
    return games


def each_plays(games: np.ndarray) -> IsEnough:
    """Return an `IsEnough` by which column i plays `games[i]` games."""
    return lambda column, played, steps: played >= games[column]


def play_games(
    policy: GamePolicy,
    environments: Environments,
    is_enough: IsEnough,
    explore: bool,
    idle_steps: int = 0,
    observer: Observer = NOBODY,
    meanwhile: KeepPlaying = lambda games, steps: True,
    say: Say = lambda message: None,
) -> list[Game]:
    """Play and return complete games, until each column has played enough.

    `is_enough` is asked before the first game, and whenever a game of a column ends. Once
    `meanwhile` returns False, playing ends at once.
    """
    faults = FaultLog(say)
    step = environments.reset()
    observer.after_reset(step)
    count = len(step.first)
    state, actions = policy.initial_state(count), environments.spec.actions.zeros(count)
    games: list[Game] = []
    of_column, idle, steps = np.zeros(count, int), np.zeros(count, int), 0
    over = np.array([is_enough(i, 0, 0) for i in range(count)])
    while not over.all() and meanwhile(games, steps):
        _log_faults(environments, faults)
        entry = policy.entry(step.observation, step.reward, actions, step.first, step.mask)
        before = state
        actions, state, _ = policy.step(entry, before, explore)
        observer.before_step(step, entry, before, actions, over)
        step = environments.step(actions)
        steps += int((~over & ~step.first).sum())
        idle = np.where((step.reward != 0) | step.first, 0, idle + 1)
        ended = dict[int, Game]()
        for i, whole_game, episode_return, length, _, score in environments.episodes():
            if whole_game and not over[i]:
                cut = idle_steps > 0 and step.truncated[i] and idle[i] >= idle_steps
                ended[i] = Game(episode_return, length, bool(cut), score)
                of_column[i] += 1
                over[i] = is_enough(i, int(of_column[i]), steps)
        games += ended.values()
        observer.after_step(step, actions, ended, over)
    faults.say_counts(now=True)
    return games


class ViewerFeed(Observer):
    """A feed that shows the games of copy 0 to viewers."""

    def __init__(self, policy: PolicyCore, environments: Environments, viewers: Sequence[Viewer]):
        self._policy, self._environments, self._viewers = policy, environments, viewers
        self._needs_policy_output = any(viewer.needs_policy_output for viewer in viewers)
        self._game, self._return = 0, 0.0

    def before_step(
        self, step: Step, entry: Entry, state: Any, actions: Any, over: np.ndarray
    ) -> None:
        """Show an observation and the action chosen after it, unless it ended a game."""
        if step.fault[0]:
            self._begin_game()  # the one before broke off
            return
        if over[0] or step.terminated[0] or step.truncated[0]:
            return
        action = tf.nest.map_structure(lambda x: x[0], actions)
        output = value = None
        if self._needs_policy_output:
            read = {name: getattr(entry, name) for name in _FIELDS_READ}
            mine, states = tf.nest.map_structure(lambda tensor: tensor[:1], (read, state))
            mine, chosen = entry._replace(**mine), tf.nest.map_structure(_alone, action)
            output = self._policy.judge(mine, states)
            value = self._policy.value_of(mine, states, chosen, output)[0]
        discrete = self._environments.spec.actions.discrete is not None
        self._return += float(step.reward[0])
        self._show(
            GameFrame(
                self._environments.picture(),
                self._game,
                action,
                self._return,
                None if value is None else float(value),
                output.policy[0].numpy() if output and discrete else None,
            )
        )

    def after_step(
        self, step: Step, actions: Any, games: Mapping[int, Game], over: np.ndarray
    ) -> None:
        """Show the last observation of a game; the reset after it belongs to the next game."""
        if 0 in games:
            total = self._return + float(step.reward[0])
            self._show(GameFrame(self._environments.picture(), self._game, None, total))
            self._begin_game()

    def _begin_game(self) -> None:
        self._game, self._return = self._game + 1, 0.0

    def close(self) -> None:
        """Close the viewers."""
        for viewer in self._viewers:
            viewer.close()

    def _show(self, frame: GameFrame) -> None:
        for viewer in self._viewers:
            viewer.show(frame)


def _alone(action: Any) -> np.ndarray:
    """Return an action, or a part of one, as a batch of one."""
    return np.asarray(action)[np.newaxis]


def _log_faults(environments: Environments, log: FaultLog) -> None:
    """Log new faults; raise Unplayable once there are too many."""
    for fault in environments.faults[log.added :]:
        log.add(fault, "it is rebuilt, and its game is not counted")
    if len(environments.faults) >= _FAULTS:
        log.say_counts(now=True)
        fault = environments.faults[-1]
        raise Unplayable(
            f"environments failed {len(environments.faults)} times; the last error: "
            f"{fault.text}\n{indented(fault)}"
        )


def changed_flags(config: Config, given: Sequence[str]) -> dict[str, Any]:
    """Return the flags that replace the run's: the seed, and if given those of the environment.

    --eval_epsilon, --import and --trust_teacher are others, if they are given.
    """
    others = ("eval_epsilon", "imports", "trust_teacher")
    named = [name for name in (*types.OPTION_FLAGS, *others) if name in given]
    return {name: getattr(config, name) for name in named} | {"seed": config.seed}


def choose_levels(
    config: Config, given: Sequence[str], about: CheckpointInfo, say: Say
) -> list[str]:
    """Return the levels to play, without those of a suite that the network does not fit.

    A level that was named and does not fit ends the program.
    """
    trained = about.settings["level_name"]
    wanted = config.level_name if "level_name" in given else trained
    named = [part.strip() for part in (config.test_levels or wanted).split(",")]
    like = trained.split(",")[0].strip()
    with blaming_settings(about.settings):
        recorded = config_for_playing(about.settings, **changed_flags(config, given))
    options = {name: getattr(recorded, name) for name in types.OPTION_FLAGS}
    fitting, misfits = [], {}
    for name in named:
        of_suite = SUITES[name]().level_names(name, like) if name in SUITES else []
        if of_suite:
            say(f"checking which levels of {name} the network fits")
        for level in of_suite or [name]:
            misfit = why_unsuitable(about, level_spec(level, **options))
            if misfit and not of_suite:
                flags.refuse(misfit)
            elif misfit:
                misfits[level] = misfit
            else:
                fitting.append(level)
    if misfits:
        first = next(iter(misfits.values()))
        if not fitting:
            flags.refuse(f"none of {config.test_levels} fits: {first}")
        say(
            f"{len(misfits)} levels do not fit the network and are left out ({first}): "
            f"{', '.join(misfits)}"
        )
    return fitting
