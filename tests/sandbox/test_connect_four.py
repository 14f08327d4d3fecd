"""Threats and the opponent of Connect Four beside a search of the board, cell by cell."""

import itertools

import numpy as np
import pytest

from sandbox.connect_four import show_threats, take_wins, threats


def _has_line(pieces):
    """Return whether a board [6, 7] of one player's pieces has four in a line."""
    return any(
        all(
            0 <= row + i * down < 6 and 0 <= column + i * right < 7
            and pieces[row + i * down, column + i * right]
            for i in range(4)
        )
        for row, column in itertools.product(range(6), range(7))
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    )  # fmt: skip


def _drop(board, column, player):
    after = board.copy()
    after[np.flatnonzero(board[:, column] == 0)[-1], column] = player
    return after


def _completes(board, row, column, player):
    """Return whether an empty cell would give the player four in a line."""
    pieces = board == player
    pieces[row, column] = True
    return board[row, column] == 0 and _has_line(pieces)


def test_threats_are_the_empty_cells_that_complete_a_line():
    random = np.random.default_rng(1)
    found = 0
    for _ in range(100):
        board = random.choice(3, (6, 7), p=[0.5, 0.25, 0.25])
        if _has_line(board == 1) or _has_line(board == 2):
            continue
        planes = np.stack([board == 1, board == 2], -1)
        cells = [
            [[_completes(board, row, column, player) for player in (1, 2)] for column in range(7)]
            for row in range(6)
        ]
        np.testing.assert_array_equal(threats(planes), cells)
        found += np.sum(cells)
    assert found > 100


def test_the_wrapper_shows_them_to_the_player_whose_turn_it_is():
    classic = pytest.importorskip("pettingzoo.classic")
    game = show_threats(classic.connect_four_v3.env())
    game.reset(seed=0)
    for column in (0, 1, 0, 1, 0):
        game.step(column)
    observation = game.last()[0]["observation"]  # of the second player, whom a column threatens
    assert game.observation_space("player_0")["observation"].contains(observation)
    assert observation[..., :2].sum((0, 1)).tolist() == [2, 3]
    assert np.argwhere(observation[..., 2:]).tolist() == [[2, 0, 1]]


def test_it_takes_wins_and_otherwise_any_free_column():
    random, boards, expected = np.random.default_rng(0), [], []
    won = 0
    for _ in range(60):
        board, player = np.zeros([6, 7], int), 1
        for _ in range(random.integers(5, 40)):
            free = [c for c in range(7) if board[0, c] == 0]
            if not free:
                break
            wins = [c for c in free if _has_line(_drop(board, c, player) == player)]
            boards.append(np.stack([board == player, board == 3 - player], -1))
            expected.append(np.isin(range(7), wins or free))
            won += bool(wins)
            others = [c for c in free if c not in wins]
            if not others:
                break
            board, player = _drop(board, random.choice(others), player), 3 - player
    found = take_wins(np.array(boards, np.float32))
    assert won > 100
    np.testing.assert_array_equal(found > 0, expected)
    np.testing.assert_allclose(found.sum(1), 1)
    assert all(len(set(row[row > 0])) == 1 for row in found), "all are equally likely"
