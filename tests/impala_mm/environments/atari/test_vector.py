"""Atari in C++ against a slow reference; ids, options, lives, truncation, faults, seeds."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from impala_mm.environments.make import level_spec, make_environments
from impala_mm.environments.types import BadLevel

ale_py = pytest.importorskip("ale_py")

from atari_reference import Reference  # noqa: E402

from impala_mm.environments.atari import vector as atari  # noqa: E402
from impala_mm.environments.make import find_level  # noqa: E402

BREAKOUT, PONG = "BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"
FIRE = 1


def _agree(level_name, rom, steps, num_envs=1, **options):
    """Play the same actions in both; return the references and the number of equal entries."""
    envs = make_environments(level_name, num_envs, seed=0, no_ops=0, **options)
    references = [Reference(rom, **options) for _ in range(num_envs)]
    rng = np.random.default_rng(0)
    step, actions = envs.reset(), [0] * num_envs
    seen = {"truncated": 0, "terminated": 0, "first": 0}
    for t in range(steps + 1):
        for i, reference in enumerate(references):
            due = reference.step(actions[i])
            here = (step.reward[i], step.terminated[i], step.truncated[i], step.first[i])
            assert here == (due.reward, due.terminated, due.truncated, due.first), f"entry {t}"
            if not reference.game_over():  # the vector's last picture of these is an older one
                difference = step.observation[i].astype(np.int64) - due.observation
                assert np.abs(difference).max() <= 1, f"entry {t}"
            for what in seen:
                seen[what] += getattr(due, what)
        actions = rng.integers(0, envs.spec.num_actions, num_envs)
        step = envs.step(actions)
    finished = envs.episodes()
    for i, reference in enumerate(references):
        for whole, due in ((True, reference.games), (False, reference.episodes)):
            mine = [e for e in finished if e.environment == i and e.whole_game == whole]
            assert [(e.episode_return, e.length) for e in mine] == due
    assert envs.faults == []
    return references, seen


@pytest.mark.slow
def test_breakout_is_as_in_the_reference():
    (reference,), seen = _agree(BREAKOUT, "breakout", 5000)
    assert len(reference.games) >= 15
    assert reference.lives_lost >= 5 * len(reference.games), "no game restarts at a lost life"
    assert seen["terminated"] == reference.lives_lost, "the last life, too, ends things once"
    assert seen["first"] in {len(reference.games), len(reference.games) + 1}
    assert max(result for result, _ in reference.games) > 1


def test_a_lost_life_ends_no_episode_if_only_games_shall_end():
    (reference,), seen = _agree(BREAKOUT, "breakout", 700, life_loss_ends=False)
    assert len(reference.games) >= 2
    assert reference.lives_lost > 5 * len(reference.games) - 5
    assert seen["terminated"] == len(reference.games)
    assert reference.games == reference.episodes


def test_pictures_in_colours_are_those_of_the_reference():
    _agree(BREAKOUT, "breakout", 60, grayscale=False)
    envs = make_environments("ALE/Breakout-v5", 2, 0, grayscale=False, height=210, width=160)
    picture = envs.reset().observation[0]
    assert (envs.spec.observation, picture.dtype) == (
        tf.TensorSpec([210, 160, 3], tf.uint8),
        np.uint8,
    )
    np.testing.assert_array_equal(picture[60, 80], [200, 72, 72])  # the red row of bricks


def test_rewards_are_raw():
    (reference,), _ = _agree("SpaceInvadersNoFrameskip-v4", "space_invaders", 250)
    assert max(reference.rewards) > 1


def test_pong_is_cut_at_its_limit_of_frames():
    _, seen = _agree(PONG, "pong", 160, num_envs=2, max_frames=200)
    assert seen == {"truncated": 6, "terminated": 0, "first": 8}, "50 steps and a reset, in turn"


def test_games_without_reward_are_cut_and_really_begin_anew():
    (reference,), seen = _agree(BREAKOUT, "breakout", 400, no_reward_steps=40)
    assert seen["truncated"] > 2
    assert seen["first"] > seen["truncated"] / 2
    assert any(result > 0 for result, _ in reference.games), "a reward keeps a game going"
    assert any(length == 40 for _, length in reference.games)


# --- ids


def _game(name, **options):
    return find_level(name, **options).game


@pytest.mark.parametrize(
    ("name", "rom", "sticky"),
    [
        ("PongNoFrameskip-v0", "pong", 0.25),
        ("ale_py:ALE/Pong-v5", "pong", 0.25),
        ("MsPacmanNoFrameskip-v4", "ms_pacman", 0.0),
    ],
)
def test_what_an_id_says_is_read_from_the_registry(monkeypatch, name, rom, sticky):
    asked = {}
    monkeypatch.setattr(atari, "AtariVectorEnv", lambda *given, **more: asked.update(more, _=given))
    envs = make_environments(name, 3, seed=0)
    assert asked.pop("_") == (rom, 3)
    assert asked["repeat_action_probability"] == sticky
    assert (asked["frameskip"], asked["stack_num"], asked["noop_max"]) == (4, 1, 31)
    assert (asked["reward_clipping"], asked["episodic_life"]) == (False, False)
    assert (asked["life_loss_info"], asked["num_threads"]) == (True, 1)
    spec = envs.spec
    assert spec == level_spec(name)
    assert spec.observation == tf.TensorSpec([84, 84, 1], tf.uint8)
    assert (spec.action_repeats, spec.frame_stack, spec.note) == (4, 4, "")
    assert spec.num_actions == {"pong": 6, "ms_pacman": 9}[rom]
    assert _game(name).max_frames == 108_000


def test_options_go_before_what_an_id_says():
    name = "ALE/Breakout-v5"
    shape = {"width": 42, "height": 63, "frame_stack": 2}
    spec = level_spec(name, **shape, num_action_repeats=1, full_action_space=True)
    assert spec.frame_stack == 2
    assert spec.observation == tf.TensorSpec([63, 42, 1], tf.uint8)
    assert (spec.num_actions, spec.action_repeats) == (18, 1)
    assert "num_action_repeats=1 makes every emulator frame a step" in spec.note
    assert "impala_horovod_gym ignored the flag" in spec.note
    assert level_spec(name).num_actions == 4
    assert _game(name, sticky_actions=0).sticky_actions == 0
    assert _game(name, sticky_actions=0.5).sticky_actions == 0.5
    envs = make_environments(name, 1, 0, width=42, height=63, full_action_space=True)
    assert envs.reset().observation.shape == (1, 63, 42, 1)
    assert envs.step(np.array([17])).observation.any()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Pong-v4", "repeats each action 2 to 4 times, at random"),
        ("MsPacman-v0", "did you mean MsPacmanNoFrameskip-v0 or ALE/MsPacman-v5?"),
        ("ale_py:Pong-v0", "did you mean ale_py:PongNoFrameskip-v0 or ale_py:ALE/Pong-v5?"),
        ("ALE/Brekout-v5", "did you mean ALE/Breakout-v5"),
        ("PongDeterministic-v4", "did you mean PongNoFrameskip-v4"),
    ],
)
def test_ids_that_cannot_be_played_are_refused_with_those_that_can(name, sentence):
    with pytest.raises(BadLevel) as refused:
        level_spec(name)
    assert sentence in str(refused.value)


def test_a_missing_rom_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    atari._actions.cache_clear()
    with pytest.raises(BadLevel, match=r"^ALE/Pong-v5 needs the ROM pong.bin"):
        level_spec("ALE/Pong-v5")
    (tmp_path / "pong.bin").write_bytes(b"not the game")
    with pytest.raises(BadLevel, match=r"ALE/Pong-v5: The hash of pong.bin does not match"):
        level_spec("ALE/Pong-v5")


def test_other_observations_go_through_gymnasium():
    kwargs = {"game": "pong", "obs_type": "ram", "frameskip": 4}
    gymnasium.register("TestingPongRam-v0", "ale_py.env:AtariEnv", kwargs=kwargs)
    spec = level_spec("TestingPongRam-v0")
    assert spec.observation == tf.TensorSpec([128], tf.uint8)
    assert (spec.action_repeats, spec.frame_stack) == (1, 1)
    with pytest.raises(BadLevel, match="is not an Atari game"):
        level_spec("TestingPongRam-v0", sticky_actions=0.1)


# --- seeds, starts and FIRE


def _pictures(envs, steps):
    """Return pictures uint8 [steps + 1, E, 84, 84, 1] of a game with one constant action."""
    pictures = [envs.reset().observation]
    actions = np.random.default_rng(0).integers(0, envs.spec.num_actions, steps)
    for action in actions:
        pictures.append(envs.step(np.full(pictures[0].shape[0], action)).observation)
    return np.stack(pictures)


@pytest.mark.parametrize("count", [6, pytest.param(64, marks=pytest.mark.slow)])
def test_environments_are_seeded_each_for_itself(count):
    many = _pictures(make_environments("ALE/Pong-v5", count, seed=3), 12)
    assert many.shape == (13, count, 84, 84, 1)
    assert len({play.tobytes() for play in many.swapaxes(0, 1)}) > count // 2 - 2
    last = count - 2
    # A seed too large for the emulator is brought into its range.
    few = _pictures(make_environments("ALE/Pong-v5", 2, seed=2**31 + 3 + last), 12)
    np.testing.assert_array_equal(few, many[:, last:])


def test_up_to_30_no_ops_begin_a_game():
    envs = make_environments("FreewayNoFrameskip-v4", 1, seed=0)
    vector, frames = envs._vector, set()
    envs.reset()
    for _ in range(60):
        frames.add(int(vector.reset()[1]["episode_frame_number"][0]))
    assert min(frames) >= 0
    assert max(frames) <= 30
    assert len(frames) > 15
    vector = make_environments("FreewayNoFrameskip-v4", 1, seed=0, no_ops=0)._vector
    assert {int(vector.reset()[1]["episode_frame_number"][0]) for _ in range(9)} == {0}


@pytest.mark.parametrize("options", [{}, {"life_loss_ends": False}])
def test_fire_is_pressed_for_the_agent_in_a_step_that_is_none(options):
    """The pictures, rewards, ends and scores are those of the emulator, stepped by hand."""
    (reference,), seen = _agree(BREAKOUT, "breakout", 450, fire_after_life_loss=True, **options)
    assert len(reference.served) > 6
    assert len(reference.games) >= 2
    assert seen["first"] >= len(reference.served) + len(reference.games)
    if options:  # as in an evaluation
        assert reference.games == reference.episodes
        assert seen["terminated"] == len(reference.games)


def test_a_reward_while_fire_is_pressed_counts_for_the_scores_and_is_not_learnt_from(monkeypatch):
    envs = _told(monkeypatch, PONG, [3, 3, 2, 2, 2, 1, 0, 3], (7,), fire_after_life_loss=True)
    steps = [envs.step(np.array([3])) for _ in range(7)]
    assert envs._vector.pressed[2] == envs._vector.pressed[5] == FIRE
    assert [s.first[0] for s in steps] == [False, False, True, False, False, True, True]
    assert [s.reward[0] for s in steps] == [1, 1, 0, 1, 1, 0, 0]
    assert [s.terminated[0] for s in steps] == [False, True, False, False, True, False, False]
    lives = [(False, 2.0, 2), (False, 3.0, 2)]
    assert [e[1:4] for e in envs.episodes()] == [*lives, (True, 6.0, 4)]


def test_where_there_is_no_fire_nothing_is_pressed(monkeypatch):
    freeway = "FreewayNoFrameskip-v4"
    envs = _told(monkeypatch, freeway, [2, 1, 1], fire_after_life_loss=True)
    for _ in range(2):
        envs.step(np.array([2]))
    assert envs._vector.pressed == [2, 2]


# --- the vector's reports, and its faults


class Told:
    """A vector of one environment, 4 frames a step, whose lives and games the test sets."""

    lives, resets = (), ()  # after each step; the steps that are resets

    def __init__(self, game, num_envs):
        self.pressed = []

    def reset(self, seed=None, options=None):
        self._time, self._began = 0, 100
        return self._see()

    def step(self, actions):
        self.pressed.append(int(actions[0]))
        self._time += 1
        if self._time in self.resets:
            self._began = 100 + 4 * self._time - 2
        lost = self.lives[self._time] < self.lives[self._time - 1]
        picture, info = self._see()
        return picture, np.array([1]), np.array([lost]), np.array([False]), info

    def _see(self):
        now = 103 + 4 * self._time
        told = {
            "lives": self.lives[self._time],
            "frame_number": now,
            "episode_frame_number": now - self._began,
        }
        return np.zeros((1, 1, 84, 84), np.uint8), {k: np.array([v]) for k, v in told.items()}


def _told(monkeypatch, name, lives, resets=(), **options):
    """Return a level in the vector above, after its first reset."""
    monkeypatch.setattr(Told, "lives", lives)
    monkeypatch.setattr(Told, "resets", resets)
    game = _game(name, **options)
    envs = atari.AtariVector(atari.AtariLevel(game, None).spec(), game, 1, 0, open_vector=Told)
    envs.reset()
    return envs


def test_a_game_that_ends_with_lives_left_is_told_by_its_reset(monkeypatch):
    envs = _told(monkeypatch, PONG, [3, 3, 2, 3, 3], (3,))
    steps = [envs.step(np.array([0])) for _ in range(4)]
    assert [s.terminated[0] for s in steps] == [False, True, False, False]
    assert [s.first[0] for s in steps] == [False, False, True, False]
    assert [s.reward[0] for s in steps] == [1, 1, 0, 1]
    assert [e[1:4] for e in envs.episodes()] == [(False, 2.0, 2), (True, 2.0, 2)]


def test_an_action_that_does_not_exist_is_refused_before_the_vector_hangs(monkeypatch):
    envs = _told(monkeypatch, PONG, [0])
    for wrong in (-1, 6):
        with pytest.raises(ValueError, match="are not all from 0 to 5"):
            envs.step(np.array([wrong]))


class Breaks:
    """A real vector whose step raises on request."""

    made = 0
    raising = False

    def __init__(self, game, num_envs):
        self._vector = atari.open_vector(game, num_envs)
        Breaks.made += 1

    def reset(self, **given):
        return self._vector.reset(**given)

    def step(self, actions):
        if Breaks.raising:
            raise RuntimeError("the emulator\nis gone")
        return self._vector.step(actions)


@pytest.fixture
def breaking(monkeypatch):
    """Return three games of Pong in a vector that can be broken."""
    monkeypatch.setattr(Breaks, "made", 0)
    monkeypatch.setattr(Breaks, "raising", False)
    game = _game(PONG)
    return atari.AtariVector(atari.AtariLevel(game, None).spec(), game, 3, 5, open_vector=Breaks)


def test_a_fault_breaks_all_and_the_next_step_opens_another_vector(breaking, monkeypatch):
    envs = breaking
    envs.reset()
    envs.step(np.zeros(3, np.int64))
    monkeypatch.setattr(Breaks, "raising", True)
    step = envs.step(np.zeros(3, np.int64))
    assert step.fault.all()
    assert step.first.all()
    for zeros in (step.reward, step.terminated, step.truncated, step.observation):
        assert not zeros.any()
    gone = f"all 3 environments of {PONG}: RuntimeError: the emulator is gone"
    assert [(fault.text, fault.environment) for fault in envs.faults] == [(gone, None)]
    monkeypatch.setattr(Breaks, "raising", False)
    step = envs.step(np.zeros(3, np.int64))
    assert step.first.all()
    assert not step.fault.any()
    assert all(picture.any() for picture in step.observation)
    assert Breaks.made == 2
    step = envs.step(np.zeros(3, np.int64))
    assert not (step.fault | step.first).any()
    assert envs.episodes() == []
