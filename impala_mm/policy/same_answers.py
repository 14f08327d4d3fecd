"""The check of an export: it answers made-up observations as TensorFlow answers them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.policy import signatures
from impala_mm.policy.core import PolicyCore
from impala_mm.policy.exports import CannotExport

_TOLERANCE = 1e-5  # relative, and absolute in the unit of an output's largest number
_ROUNDING = 10.0  # ... and so many times what a rounding of all weights changes
_STEPS = 3
_GAMES = (1, 16)
_TIED = 1 / 16  # the share of games whose choices may be nearly tied, where this is not computed


def check(
    policy: PolicyCore, answer: Callable[[dict[str, Any]], dict[str, Any]], name: str
) -> None:
    """Raise CannotExport if the most likely actions or other outputs differ from TensorFlow's.

    `answer` returns what `signatures.act(policy, explores=False)` does for the same inputs, arrays
    by their names.
    """
    signature = signatures.act(policy, explores=False)
    begin = signatures.initial_state(policy).function
    for games in _GAMES:
        random = np.random.default_rng(games)
        state = {n: x.numpy() for n, x in begin(batch_size=tf.constant(games)).items()}
        last = {
            n: np.zeros([games, *spec.shape[1:]], spec.dtype.as_numpy_dtype)
            for n, spec in signature.inputs.items()
            if n.startswith("last_")
        }
        for step in range(_STEPS):
            given = {"first": np.full(games, step == 0), **last, **state}
            given |= _seen(policy, games, random)
            right = _by_tensorflow(signature, given)
            with _rounded(signature.function.graph.variables, random):
                rounded = _by_tensorflow(signature, given)
            if wrong := _difference(policy, right, answer(given), rounded):
                raise CannotExport(
                    f"{name} computes other outputs than TensorFlow: {wrong}; a SavedModel "
                    f"(--export_format=saved_model) computes the same"
                )
            state = {n: right[n] for n in state}
            last = {n: right.get(n.removeprefix("last_"), x) for n, x in last.items()}
            last["last_reward"] = random.normal(size=games).astype(np.float32)


def _by_tensorflow(signature: signatures.Signature, given: dict[str, Any]) -> dict[str, Any]:
    found = signature.function(**{name: tf.constant(array) for name, array in given.items()})
    return {name: tensor.numpy() for name, tensor in found.items()}


@contextlib.contextmanager
def _rounded(variables: Sequence[tf.Variable], random: np.random.Generator) -> Iterator[None]:
    """Change each weight by about the last of its digits within the context.

    A deep network of large weights may answer differently after that, so no other order of its sums
    could be held to less.
    """
    before = [(each, each.numpy()) for each in variables if each.dtype.is_floating]
    try:
        for variable, value in before:
            changes = np.finfo(value.dtype).eps * random.choice([-1, 1], value.shape)
            variable.assign((value * (1 + changes)).astype(value.dtype))
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _seen(policy: PolicyCore, games: int, random: np.random.Generator) -> dict[str, Any]:
    """Return random observations, and masks that allow some choices."""
    seen: dict[str, Any] = {}
    for name, spec in signatures.named(policy.spec.observation, "observation").items():
        shape, dtype = [games, *spec.shape], spec.dtype.as_numpy_dtype
        if spec.dtype.is_floating:
            seen[name] = random.normal(size=shape).astype(dtype)
        else:
            most = getattr(spec, "choices", 256 if dtype is np.uint8 else 2)
            seen[name] = random.integers(most, size=shape).astype(dtype)
    for name, spec in signatures.named(policy.spec.masks, "action_mask").items():
        seen[name] = np.ones([games, *spec.shape], bool)
    return seen


def _difference(
    policy: PolicyCore, right: dict[str, Any], found: dict[str, Any], rounded: dict[str, Any]
) -> str:
    """Return which outputs differ from the right ones, and how; empty if none does."""
    tolerances = {
        name: _TOLERANCE * max(1.0, float(np.abs(array).max(initial=0)))
        + _ROUNDING * float(np.abs(rounded[name] - array).max(initial=0))
        for name, array in right.items()
        if array.dtype.kind == "f"
    }
    for name, array in right.items():
        other = found[name]
        if other.shape != array.shape or other.dtype != array.dtype:
            return f"{name} is {other.dtype} {other.shape}, not {array.dtype} {array.shape}"
        if name in tolerances:
            if not np.allclose(other, array, _TOLERANCE, tolerances[name], equal_nan=True):
                return f"{name} differs by {np.abs(other - array).max():.2g}"
            continue
        games = np.flatnonzero(np.any((other != array).reshape(len(array), -1), 1))
        tied = name.startswith("action") and len(games) <= _TIED * len(array)
        if name == "action" and policy.spec.actions.discrete is not None:
            scored = "values" if "values" in right else "policy"
            scores, chosen = right[scored][games], other[games]
            known = np.clip(chosen, 0, scores.shape[1] - 1)
            rows = np.arange(len(games))
            lost = np.abs(scores[rows, array[games]] - scores[rows, known])
            tied = bool((known == chosen).all() and (lost <= tolerances[scored]).all())
        if len(games) and not tied:
            return f"{name} differs in {len(games)} of {len(array)} games"
    return ""
