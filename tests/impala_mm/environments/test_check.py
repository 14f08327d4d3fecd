"""Each bug of an environment is found in a sentence that names it, its value and the remedy."""

import math
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from counting import level
from deadlines import load
from faulty_levels import Sound
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from processes import ROOT
from supervising import until

from impala_mm.environments import check, check_process, gym_adapter
from impala_mm.environments.check import find_problems
from impala_mm.environments.check_process import CheckProcess
from impala_mm.environments.make import make_environments
from impala_mm.environments.observations import read_observations
from impala_mm.environments.types import Options


def _check(name, until=math.inf, **options):
    """Return the findings about a level, the calls that were made, and whether all were."""
    found, calls = [], []
    starts = lambda call, _: calls.append(call)  # noqa: E731
    checked = check.LevelCheck(name, Options(**options), starts, found.append)
    return found, calls, checked.run(until)


def _find_one(bug):
    found, _, _ = _check(f"faulty_levels:{bug}-v0")
    assert len(found) == 1, found
    assert found[0].sentence.startswith(f"faulty_levels:{bug}-v0")
    assert "\n" not in found[0].sentence
    return found[0]


@pytest.mark.parametrize(
    "name",
    [
        *("faulty_levels:Sound-v0", "gym:CartPole-v1", "FrozenLake-v1"),
        *("acting:Signals-v0", "acting:Harbour-v0", "Blackjack-v1"),  # of many spaces
        *("acting:Doors-v0", "acting:Rooms-v0", "acting:Stalls-v0"),  # with masks
    ],
)
def test_nothing_is_found_in_a_sound_environment(name):
    found, calls, complete = _check(name)
    assert found == []
    assert complete
    assert [call for call in calls if call.startswith("step")][-1] == "step 100"
    if "Sound" in name:
        assert calls[calls.index("step 10") + 1 :][:2] == ["reset after step 10", "step 11"]
    assert calls[-1] == "close"


ERRORS = {
    "ResetRaises": "reset raised KeyError: 'door'",
    "StepRaises": "step 4 raised AttributeError: .* no attribute 'nosuch'",
    "NoActionSpace": "it has no action_space: set self.action_space in __init__ to .*Discrete",
    "OtherSpace": r"4 \(int\) is its observation_space: set self.observation_space .*Box",
    "WrongShape": r"step 1 returned observation of shape \[3\]",
    "NotANumber": "step 1 returned observation with NaN or infinity",
    "NoSuchState": "step 1 returned observation 4 is not one of 4 from 0 on",
    "InfiniteReward": "step 1 returned the reward inf",
    "ArrayReward": r"an array of shape \[1\] as reward, .* a number: return float\(reward\)",
    "MaskInInfo": r'step 1 returned no action mask in info\["action_mask"\]',
    "MaskInStep": r'step 1 returned an action mask in info\["action_mask"\]',
    "MaskForbidsAll": "the action mask after step 3 allows no choice of the action",
    "MaskTooLong": r"reset returned action mask of shape \[4\], and Discrete\(3\) .* \[3\]",
    "MaskOfTwos": r"action mask of int64 \[2, 2, 0\], which must be bool, or 0 and 1",
    "MaskOfNumbers": r"its actions Box\(\[3\], 0 to 1\) have no choices",
}
WARNINGS = {
    "OutOfBounds": r"-0.25 at \[1\], which is 0.25 below its space's bound of 0",
    "Doubles": r"of float64, and its space is of float32: return observation.astype\(np.flo",
    "Lists": r"observation that is a list: return an array, np.array\(observation, dty",
    "NumberAsEnd": r"returned 0 \(int\) as truncated, which must be .*: return bool\(trunca",
    "NoInfo": "reset returned None as info",
    "NoSeed": "two resets with seed=1",
    "OldStep": "step returned a tuple of 4, as in gym before 0.26",
    "OldReset": r"reset returned an array of shape \[2\], as ",
    "Unseeded": r"two resets with seed=1 .* different observations.*super\(\).reset\(seed=se",
}


@pytest.mark.parametrize("bug", ERRORS | WARNINGS)
def test_what_fails_in_a_training_is_an_error_and_what_is_a_mistake_is_a_warning(bug):
    found = _find_one(bug)
    assert found.is_error == (bug in ERRORS)
    assert re.search((ERRORS | WARNINGS)[bug], found.sentence), found.sentence


def test_an_exception_is_shown_with_the_frames_of_the_users_code_alone():
    lines = _find_one("ResetRaises").traceback.splitlines()
    files = [line for line in lines if "File" in line]
    assert "in _start" in files[-1]
    assert all("faulty_levels.py" in line for line in files)
    assert lines[-1] == "KeyError: 'door'"

    def lacks_one():
        return 1 / 0

    (found,), _, _ = _check(level(lacks_one))
    assert "making it raised ZeroDivisionError: division by zero" in found.sentence
    assert "in lacks_one" in found.traceback


@pytest.mark.parametrize("metadata", [None, {}])
def test_an_environment_without_metadata_is_sound(metadata):
    bare = type("Bare", (Sound,), {"metadata": metadata})
    found, _, complete = _check(level(bare))
    assert (found, complete) == ([], True)
    make_environments(level(bare), 1, 0).close()


def test_an_environment_of_several_agents_must_name_them():
    class Parallel(Sound):  # as PettingZoo's
        def action_space(self, agent):
            return Discrete(2)

    (found,), _, _ = _check(level(Parallel))
    assert found.is_error
    assert "no list possible_agents" in found.sentence


def test_arguments_and_wrappers_that_do_not_fit_are_errors():
    for options, said in (({"env_wrappers": "making:Tines"}, "Tines"), ({"env_kwargs": "{}"}, "")):
        found, _, _ = _check("making:Walk", **options)
        assert [said in each.sentence for each in found] == [True] * bool(said)


def test_an_environment_is_closed_and_its_error_reported():
    class Sticks(Sound):
        def close(self):
            raise OSError("the port is busy")

    (found,), _, _ = _check(level(Sticks))
    assert not found.is_error
    assert "close raised OSError: the port is busy" in found.sentence


def test_the_time_limit_is_kept_between_steps():
    found, calls, complete = _check("faulty_levels:Sound-v0", until=0)
    assert (found, complete) == ([], False)
    assert "step 1" not in calls


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "catch"])
def test_games_of_atari_and_our_own_levels_are_trusted(name):
    if name != "catch":
        pytest.importorskip("ale_py")
    _, calls, complete = _check(name)
    assert (calls, complete) == (["the import"], True)


def _read(space):
    return read_observations("a-level", space, 0, 0)


EYE, DOOR, ANGLE = Box(0, 255, (2, 2), np.uint8), Discrete(3, start=2), Box(-np.pi, np.pi, (1,))
KEYS = MultiDiscrete([2, 3], start=[0, 5])
ROOM = Dict(doors=Tuple([DOOR, DOOR]), lamps=MultiBinary(2))


@pytest.mark.parametrize(
    ("space", "observation", "is_error", "sentence"),
    [
        (EYE, np.full((2, 2), 0.5), False, "of float64, and its space is of uint8, in which fract"),
        (EYE, [[1], [2, 3]], True, "inhomogeneous"),
        (EYE, np.full((2, 2), 256), True, "observation of int64 with 256, which no byte holds"),
        (DOOR, 5, True, "observation 5 is not one of 3 from 2 on"),
        (DOOR, 4.0, False, "observation 4.0, which is no integer: return int(observation)"),
        (ANGLE, np.array([4], np.float32), False, "with 4 at [0], which is 0.858407 above its spa"),
        (KEYS, [0, 8], True, "observation [0 8] is not one of [2, 3] from [0, 5] on"),
        (KEYS, np.array([1.0, 5]), False, "which is no integer: return astype(np.int64)"),
        (MultiBinary(2), [0, 2], False, "with 2 at [1], which is 1 above its space's bound of 1"),
        (ROOM, {"doors": (2, 3)}, True, "observation without the key 'lamps' of its space"),
        (ROOM, None, True, "None and its space is Dict('doors': "),
        (ROOM, {"doors": (2,), "lamps": [0, 0]}, True, "observation['doors'] of 1 parts, and its"),
        (ROOM, {"doors": (2, 3.0), "lamps": [0, 0]}, False, "observation['doors'][1] 3.0, which"),
        # Numbers that differ by their rounding are in their space.
        (DOOR, np.array(4), False, ""),
        (ANGLE, np.array([np.pi], np.float32) * 1.0000001, False, ""),
        (ROOM, {"doors": (2, 4), "lamps": np.array([0, 1], np.int8)}, False, ""),
    ],
)
def test_an_observation_is_an_error_only_if_a_training_cannot_use_it(
    space, observation, is_error, sentence
):
    found = list(find_problems(observation, space, _read(space)))
    assert bool(found) == bool(sentence)
    for _, error, said in found[:1]:
        assert error == is_error
        assert sentence in said


def test_numbers_are_used_whatever_their_type():
    class Exact(Sound):
        def step(self, action):
            observation, _, terminated, _, info = super().step(action)
            return observation, Fraction(1, 3), np.array(terminated), False, info

    (found,), _, complete = _check(level(Exact))
    assert complete
    assert not found.is_error
    assert "an array of shape [] as terminated" in found.sentence


def test_a_reset_of_compiled_code_needs_no_signature(monkeypatch):
    def refuse(function):
        raise ValueError(f"no signature found for builtin {function}")

    monkeypatch.setattr(gym_adapter.inspect, "signature", refuse)
    assert _check("faulty_levels:Sound-v0")[0] == []


def _in_process(*bugs, seconds=20.0):
    names = [f"faulty_levels:{bug}-v0" for bug in bugs]
    return CheckProcess([*names, "catch"], {}, seconds, hides_gpus=True).result()


def test_a_level_that_ends_its_process_is_named_with_the_call_and_the_next_ones_are_checked():
    errors, warnings = _in_process("Exits", "OutOfBounds", "Crashes", seconds=60.0)
    (exits, printed), (crashes, stack) = errors
    assert exits == "faulty_levels:Exits-v0: its process ended with exit code 3 in step 1"
    assert printed == "the simulator has no licence"
    assert crashes == "faulty_levels:Crashes-v0: its process was killed by SIGSEGV in step 1"
    assert re.search(r"faulty_levels.py\", line \d+ in see", stack)
    assert "check.py" not in stack
    assert ["0.25 below" in warning for warning in warnings] == [True]


def test_a_call_that_never_returns_is_named_with_its_line(monkeypatch):
    monkeypatch.setattr(check_process, "_STUCK_SECONDS", 0.1)
    monkeypatch.setattr(check_process, "_LATE_SECONDS", 0.1)
    seconds = 1.5 * load()  # in which it gets to this step
    ((sentence, stack),), warnings = _in_process("Hangs", seconds=seconds)
    assert "faulty_levels:Hangs-v0: step 4 did not return within " in sentence
    assert f"set --check_env_secs to more than {seconds:g}" in sentence
    assert re.search(r"faulty_levels.py\", line \d+ in see", stack)
    assert warnings == []


def test_too_little_time_for_all_steps_is_a_warning(monkeypatch):
    monkeypatch.setattr(check_process, "_STUCK_SECONDS", 0.8)
    seconds = min(1.2 * load(), 0.04 * check.STEPS)
    errors, (warning,) = _in_process("Slow", seconds=seconds)
    assert errors == []
    assert re.search(rf"\d+ steps were made when the check ended after {seconds:g} s", warning)


def test_an_environment_that_is_not_made_in_time_can_clean_up(tmp_path, monkeypatch):
    file = tmp_path / "half of a download"
    monkeypatch.setenv("DOWNLOAD", str(file))
    checked = CheckProcess(["faulty_levels:Downloads-v0"], {}, 60.0, hides_gpus=True)
    until(file.exists)
    checked.stop()
    assert not file.exists()


@pytest.mark.parametrize("name", ["CartPole-v1", "ALE/Pong-v5", "catch"])
def test_the_check_does_not_load_tensorflow_which_takes_longer_than_itself(name):
    if name.startswith("ALE"):
        pytest.importorskip("ale_py")
    code = (
        "import sys, time; from impala_mm.environments import check, types; "
        f"check.LevelCheck('{name}', types.Options(), print, print).run(time.monotonic() + 60); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_files_of_the_current_folder_are_not_run_by_the_check(tmp_path, monkeypatch):
    """The folder may be another user's."""
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    [(sentence, _)] = _in_process("Crashes").errors
    assert sentence.startswith("faulty_levels:Crashes-v0: ")
