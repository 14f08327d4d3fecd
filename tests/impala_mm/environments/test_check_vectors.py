"""The check of a vector finds nothing in sound ones, and says what is wrong with others."""

import math
import re

import numpy as np
import pytest
import vectored
from deadlines import load
from gymnasium.vector import AutoresetMode

from impala_mm.environments import check_vectors
from impala_mm.environments.check_process import CheckProcess
from impala_mm.environments.types import Options


def _check(name, **options):
    found = []
    checked = check_vectors.AnyLevelCheck(
        name, Options(**options), lambda call, steps: None, found.append
    )
    assert checked.run(math.inf)
    return found


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("game", ["Doors", "Harbour", "Rooms", "Signals", "Stalls"])
@pytest.mark.parametrize("make", ["make_sync", "Alike"])
def test_nothing_is_found_in_a_sound_vector(make, game, mode):
    found = _check(f"vectored:{make}", env_kwargs=f'{{"game": "{game}", "mode": "{mode}"}}')
    assert found == []


BUGS = {  # what is wrong of a vector of `Alike`: its mode, what changes it, an error or a warning
    "Raises": ("NEXT_STEP", {"wrong": lambda *_: 1 / 0}, True, "step 1: ZeroDivisionError"),
    "NaN": (
        "NEXT_STEP",
        {"wrong": lambda seen, *rest: (seen * np.nan, *rest)},
        True,
        "step 1: ValueError: environment 0 returned observation with NaN",
    ),
    "Bounds": (
        "NEXT_STEP",
        {"wrong": lambda seen, *rest: (seen - np.float32([[0], [0], [99]]), *rest)},
        False,
        r"step 1 returned for environment 2 observation with -98 at \[0\], .*below its space's",
    ),
    "Doubles": (
        "NEXT_STEP",
        {"wrong": lambda seen, *rest: (seen.astype(np.float64), *rest)},
        False,
        "step 1 returned for environment 0 observation of float64, and its space is of float32",
    ),
    "SaysNext": ("SAME_STEP", {"says": "NEXT_STEP"}, False, r'NEXT_STEP, .* info\["final_obs"\]'),
    "SaysNextAndHidesIt": (
        "SAME_STEP",
        {"says": "NEXT_STEP", "wrong": lambda *results: (*results[:4], {})},
        False,
        "NEXT_STEP, and step .*, by which the next episode .* brought it the reward .*began before",
    ),
    "SaysSame": ("NEXT_STEP", {"says": "SAME_STEP"}, True, "was truncated, and info"),
    "Ends": ("DISABLED", {"says": "NEXT_STEP"}, True, "AssertionError"),
    "ResetsAll": ("DISABLED", {"resets": True}, True, "changed the observations of environments "),
    "Unseeded": ("NEXT_STEP", {"seeds": lambda seed: None}, False, "two vectors with seed=1"),
    "OneSeed": ("NEXT_STEP", {"seeds": lambda seed: [seed] * 3}, False, r"seed environment i with"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_what_is_wrong_is_said_in_a_sentence(bug, monkeypatch):
    mode, changes, is_error, sentence = BUGS[bug]

    class Wrong(vectored.Alike):
        def __init__(self, num_envs):
            game = "Doors" if "seeds" in changes else "Paying"
            wrong = changes.get("wrong", lambda *results: results)
            super().__init__(num_envs, game, mode, wrong)
            self.metadata = {"autoreset_mode": AutoresetMode[changes.get("says", mode)]}

        def reset(self, *, seed=None, options=None):
            if seed is not None and self.num_envs == 3:
                seed = changes.get("seeds", lambda seed: seed)(seed)
            return super().reset(seed=seed, options=None if "resets" in changes else options)

    monkeypatch.setattr(vectored, bug, Wrong, raising=False)
    found = _check(f"vectored:{bug}")
    (finding,) = [each for each in found if re.search(sentence, each.sentence)] or [found]
    assert finding.is_error == is_error
    assert finding.sentence.startswith(f"vectored:{bug}: ")


def test_the_process_of_a_check_checks_vectors():
    """As the command --validate does it."""
    options = Options(env_kwargs='{"own": 2}')._asdict()
    level, seconds = "sandbox.own_vector:Corridors", 30 * load()
    result = CheckProcess([level], options, seconds, hides_gpus=True).result()
    ((sentence, _),) = result.errors
    assert "cannot be made" in sentence
    assert "unexpected keyword argument 'own'" in sentence
