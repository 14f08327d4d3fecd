"""A video shows the game that the agent plays, and the agent sees what it saw in training."""

from types import SimpleNamespace

import numpy as np
import pytest
from counting import level
from saved_run import save

from impala_mm.environments import seeds
from impala_mm.environments.make import make_environments
from impala_mm.environments.small_games import Catch
from impala_mm.evaluation.game_video import GameVideo, action_namer, record_game
from impala_mm.evaluation.games import Unplayable, evaluate_level
from impala_mm.policy.policy import load_policy


def _spied(policy):
    """Return a policy that takes all actions in turn, and the list to which it adds its steps."""
    asked = []

    def step(entry, state, explore):
        action, state, extras = policy.step(entry, state, explore)
        action = ((action + len(asked)) % policy.spec.num_actions).astype(np.int32)
        kept = {n: getattr(entry, n).numpy() for n in ("observation", "reward", "first", "action")}
        asked.append((kept, action))
        return action, state, extras

    names = (
        *("config", "spec", "levels", "initial_state", "entry", "judge", "value_of"),
        *("path", "about"),
    )
    return SimpleNamespace(step=step, **{name: getattr(policy, name) for name in names}), asked


def _frames(path):
    av = pytest.importorskip("av")
    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


@pytest.mark.parametrize(
    ("level_name", "names"),
    [
        ("catch", ["left", "stay", "right"]),
        ("PongNoFrameskip-v4", ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]),
    ],
)
def test_actions_are_called_by_their_names(tmp_path, level_name, names):
    policy = load_policy(save(tmp_path, level_name=level_name))
    name_of = action_namer(policy, level_name)
    assert [name_of(np.int32(i)) for i in range(len(names))] == names


def test_while_it_is_filmed_the_agent_sees_its_steps_as_in_training(tmp_path):
    level_name, path = "PongNoFrameskip-v0", tmp_path / "a.mp4"
    policy, asked = _spied(load_policy(save(tmp_path, sure=True, level_name=level_name)))
    evaluate_level(
        *(policy, level_name, 1, 1),
        viewers=lambda playing: [
            GameVideo(path, playing.picture_rate, lambda action: "a", needs_policy_output=True)
        ],
        meanwhile=lambda games, steps: steps < 95,
    )
    assert len(asked) == 95
    plain = make_environments(level_name, 1, seeds.of_test(1), life_loss_ends=False)
    step, last, total = plain.reset(), np.zeros(1), 0.0
    for entry, action in asked:
        assert (entry["observation"] == step.observation).all()
        assert (entry["first"] == step.first).all()
        assert entry["reward"] == step.reward
        assert entry["action"] == last
        step, last = plain.step(action), action
        total += step.reward[0]
    assert total < 0, "the last reward was not always 0"
    assert not list(tmp_path.glob("*.mp4")), "of a game that is not over there is no video"


def test_a_filmed_game_is_whole_and_ends_as_the_environment_says(tmp_path):
    policy = load_policy(save(tmp_path, sure=True, level_name="catch"))
    staying, _ = _spied(policy)
    staying.step = lambda entry, state, explore: (np.array([1], np.int32), state, None)
    path, returns = tmp_path / "a.mp4", set()
    for seed in range(4):
        game = record_game(staying, "catch", path, seed=seed)
        assert game.lengths == [9]
        shown = _frames(path)
        assert len(shown) == 9 + 4, "the end is held for a second"
        middle = shown[-1][9 * 32 + 16, 2 * 32 + 16].astype(int)  # a pixel of the paddle's cell
        caught = np.abs(middle - (245, 158, 66)).max() < 40
        assert caught == (game.returns == [1])
        returns.update(game.returns)
    assert returns == {-1.0, 1.0}, "both ends were looked at"
    one, other = (
        record_game(policy, "catch", path, deterministic=True, overlay=overlay)
        for overlay in (False, True)
    )
    assert one == other, "who looks on changes nothing"
    assert len(_frames(path)[0]) > 320, "there is a strip below"


class _Breaks(Catch):
    broken = until = 0

    def step(self, action):
        if self._row == 3 and _Breaks.broken < _Breaks.until:
            _Breaks.broken += 1
            raise OSError("a wire came loose")
        return super().step(action)


def test_a_game_that_breaks_leaves_no_video_and_the_next_whole_one_does(tmp_path, monkeypatch):
    path, name = tmp_path / "videos" / "a.mp4", level(_Breaks)
    policy = load_policy(save(tmp_path / "run", sure=True, level_name="catch"))
    monkeypatch.setattr(_Breaks, "until", 99)
    with pytest.raises(Unplayable, match=rf"environment 0 of {name}: OSError: a wire"):
        record_game(policy, name, path)
    assert not list((tmp_path / "videos").iterdir())
    monkeypatch.setattr(_Breaks, "until", _Breaks.broken + 2)
    record_game(policy, name, path)
    assert len(_frames(path)) == 9 + 4, "nothing of those that broke is in it"
