"""The small games of the sandbox keep their rules, and their documented commands run them."""

import sys

import gymnasium
import numpy as np
import pytest
from processes import ROOT

sys.path.append(str(ROOT))

from impala_mm.environments import check
from impala_mm.environments.types import Options

HARVEST, TIC_TAC_TOE = "sandbox.small_games:Harvest-v0", "sandbox.small_games:TicTacToe-v0"


@pytest.mark.parametrize("name", [HARVEST, TIC_TAC_TOE])
def test_nothing_is_found_in_them_and_a_page_names_their_commands(name):
    assert f"--level_name={name}" in (ROOT / "sandbox" / "curves.md").read_text()
    found = []
    assert check.LevelCheck(name, Options(), lambda *_: None, found.append).run(np.inf)
    assert found == []


def test_fruit_is_picked_where_it_grows_and_a_walk_to_each_reaches_the_threshold():
    game = gymnasium.make(HARVEST)
    returns = []
    for seed in range(30):
        observation, _ = game.reset(seed=seed)
        picker, fruit = observation[:2], observation[2:]
        total = steps = cut = 0
        while not cut:
            action = np.sign(np.round(3 * (fruit - picker))).astype(int) + 1
            arrives = np.abs(fruit - picker).max() < 0.34  # a place is a third wide
            observation, reward, ended, cut, _ = game.step(action)
            assert reward == arrives
            assert not ended
            picker, fruit = observation[:2], observation[2:]
            assert not np.array_equal(picker, fruit)
            total, steps = total + reward, steps + 1
        assert steps == 50
        returns.append(total)
    assert np.mean(returns) > game.spec.reward_threshold


def test_tic_tac_toe_is_won_lost_and_drawn_by_its_rules_and_allows_free_squares_only():
    game = gymnasium.make(TIC_TAC_TOE, disable_env_checker=True)
    rewards, openings = set(), set()
    for seed in range(60):
        board, info = game.reset(seed=seed)
        openings.add(int(np.abs(board).sum()))
        over = False
        while not over:
            assert np.array_equal(info["action_mask"], board == 0)
            taken = np.flatnonzero(board)
            if taken.size:
                with pytest.raises(ValueError, match=rf"square {taken[0]} is not free"):
                    game.step(taken[0])
            before, choice = board, np.flatnonzero(info["action_mask"])[0]
            board, reward, over, _, info = game.step(choice)
            assert board[choice] == 1
            answers = np.sum((board == -1) & (before == 0))
            assert answers == (reward != 1 and np.any(before == 0, where=np.arange(9) != choice))
        rows = [board.reshape(3, 3), board.reshape(3, 3).T]
        sums = [*rows[0].sum(1), *rows[1].sum(1), np.trace(rows[0]), np.trace(rows[0][::-1])]
        assert reward == (3 in sums) - (-3 in sums and 3 not in sums)
        assert reward or board.all()
        rewards.add(reward)
    assert openings == {0, 1}
    assert rewards == {1, 0, -1}
