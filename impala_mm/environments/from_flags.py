"""Levels as the flags name them: their specs, and the options that their environments get."""

from typing import Any

import tensorflow as tf

from impala_mm.config import flags, user_modules
from impala_mm.config.environment_flags import OPPONENTS
from impala_mm.config.settings import Config
from impala_mm.environments import nests, texts
from impala_mm.environments.choices import ChoiceSpec
from impala_mm.environments.make import level_names, level_spec
from impala_mm.environments.types import OPTION_FLAGS, BadLevel, EnvironmentSpec


def describe_spaces(spec: EnvironmentSpec) -> dict[str, Any]:
    """Return the actions and observations that a network must fit, as text for messages."""
    return {
        "actions": spec.actions.describe(),
        "observations": nests.describe(tf.nest.map_structure(_describe, spec.observation)),
    }


def _describe(leaf: tf.TensorSpec) -> str:
    if isinstance(leaf, ChoiceSpec):
        if leaf.choices == texts.CHOICES:
            return f"{texts.WORDS} words"
        return f"choices among {', '.join(map(str, leaf.choices))}"
    return f"{leaf.dtype.name} {leaf.shape.as_list()}"


def in_words(actions: int | str | None) -> str:
    """Return what `describe_spaces` says of actions, for a sentence."""
    return f"actions {actions}" if isinstance(actions, str) else f"{actions} actions"


def choice_flags(config: Config) -> tuple[str, ...]:
    """Return the names of the flags that say which numbers choices stand for, if any do.

    How many choices there are is not among them: the actions say it.
    """
    if config.discretization == "none":
        return ()
    return ("discretization", "action_ratio")[: 1 + (config.discretization == "log")]


def environment_options(config: Config) -> dict[str, Any]:
    """Return the options of the environments: those fields of `Options` that are flags."""
    return {name: getattr(config, name) for name in OPTION_FLAGS}


def level_specs(config: Config) -> dict[str, EnvironmentSpec]:
    """Return the specs of the levels in --level_name; refuse levels that one network cannot fit."""
    specs: dict[str, EnvironmentSpec] = {}
    for name in level_names(config.level_name):
        try:
            specs[name] = level_spec(name, **environment_options(config))
        except BadLevel as error:
            user_modules.show_cause(error)
            flags.refuse(f"--level_name={config.level_name}: {error}")
        if not config.life_loss_ends and not specs[name].emulator:
            # The same option of an evaluation means complete games, of any level.
            flags.refuse(
                f"--life_loss_ends=false: {name} is not an Atari game, and has no lives here: "
                f"leave it out"
            )
        if config.opponents != OPPONENTS and specs[name].seats == 1:
            turns = "--env_wrappers=pettingzoo.utils:parallel_to_aec lets them take turns"
            flags.refuse(
                f"--opponents={config.opponents}: the agents of {name} do not take turns, so that "
                f"nobody plays against them: "
                f"{turns if specs[name].agents > 1 else 'leave it out'}"
            )
    (first, one), *others = specs.items()
    for name, other in others:
        her_ratio = getattr(config, "her_ratio", 0)
        if her_ratio and other.without_goals and not one.without_goals:
            flags.refuse(
                f"--her_ratio={her_ratio}: no other goals can be given to the steps of {name}: "
                f"{other.without_goals}: leave --her_ratio out, or change that in the environment"
            )
        for what, mine, theirs in (
            ("actions", one.actions.describe(), other.actions.describe()),
            ("observation", one.observation, other.observation),
            ("frames per step", one.action_repeats, other.action_repeats),
            ("agents", (one.agents, one.seats), (other.agents, other.seats)),
            ("action masks", *("offered" if spec.masks else "none" for spec in (one, other))),
        ):
            if mine != theirs:
                hint = "; --full_action_space makes one network fit all games of Atari"
                flags.refuse(
                    f"--level_name: {first} and {name} differ in their {what} ({mine} and "
                    f"{theirs}){hint if what == 'actions' and other.emulator else ''}"
                )
    return specs
