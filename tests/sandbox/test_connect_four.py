"""Tactics and the opponent of Connect Four beside a search of the board, cell by cell."""

import itertools

import numpy as np
import pytest

from sandbox.connect_four import show_tactics, tactics, take_wins

_LINES = np.array([
    [(row + i * down) * 7 + column + i * right for i in range(4)]
    for row, column in itertools.product(range(6), range(7))
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    if row + 3 * down < 6 and 0 <= column + 3 * right < 7
])  # fmt: skip


def _has_line(pieces):
    """Return whether a board [6, 7] of one player's pieces has four in a line."""
    return pieces.ravel()[_LINES].all(1).any()


def _drop(board, column, player):
    after = board.copy()
    after[np.flatnonzero(board[:, column] == 0)[-1], column] = player
    return after


def _completes(board, row, column, player):
    """Return whether an empty cell would give the player four in a line."""
    pieces = board == player
    pieces[row, column] = True
    return board[row, column] == 0 and _has_line(pieces)


def _free(board):
    return [column for column in range(7) if board[0, column] == 0]


def _wins_at_once(board, player):
    return any(_has_line(_drop(board, column, player) == player) for column in _free(board))


def _forces(board, player):
    """Return whether the player, who has just moved, threatens to win and does, by threats."""
    answers = [_drop(board, column, 3 - player) for column in _free(board)]
    return (
        _wins_at_once(board, player)
        and not _wins_at_once(board, 3 - player)
        and all(_wins(answer, player) for answer in answers)
    )


def _wins(board, player):
    """Return whether the player to move wins, at once or by threats."""
    return _wins_at_once(board, player) or any(
        _forces(_drop(board, column, player), player) for column in _free(board)
    )


def _boards(random, *sizes):
    """Return 40 boards of each number of random pieces, without a line."""
    found = []
    while len(found) < 40 * len(sizes):
        board = np.zeros((6, 7), int)
        pieces = sizes[len(found) // 40]
        for turn in range(pieces):
            board = _drop(board, random.choice(_free(board)), 1 + (turn + pieces) % 2)
        if not _has_line(board == 1) and not _has_line(board == 2):
            found.append(board)
    return found


def _planes(board):
    return np.stack([board == 1, board == 2], -1)


def test_threats_are_the_empty_cells_that_complete_a_line():
    found = 0
    for board in _boards(np.random.default_rng(1), 8, 14, 20, 26):
        cells = [
            [[_completes(board, row, column, player) for player in (1, 2)] for column in range(7)]
            for row in range(6)
        ]
        np.testing.assert_array_equal(tactics(_planes(board))[..., :2], cells)
        found += np.sum(cells)
    assert found > 100


def test_moves_that_win_or_lose_are_those_of_a_search():
    found = np.zeros(4, int)
    for board in _boards(np.random.default_rng(2), 12, 19, 26, 32):
        wins, loses = np.moveaxis(tactics(_planes(board))[..., 2:], -1, 0)
        wins_at_once = _wins_at_once(board, 1)
        for column in _free(board):
            after = _drop(board, column, 1)
            cell = tuple(np.argwhere(after != board)[0])
            is_win = _has_line(after == 1)
            by_threats = not wins_at_once and _forces(after, 1)
            is_fork = by_threats and all(
                _wins_at_once(_drop(after, answer, 2), 1) for answer in _free(after)
            )
            is_loss = not is_win and _wins(after, 2)
            assert wins[cell] == (is_win or by_threats)
            assert loses[cell] == is_loss
            found += [is_win, by_threats, by_threats and not is_fork, is_loss]
        assert not (wins + loses)[board > 0].any()
    assert min(found) > 3


def test_it_takes_wins_and_otherwise_any_free_column():
    boards = _boards(np.random.default_rng(0), 5, 10, 15, 20, 25, 30)
    planes = [np.concatenate([_planes(each), tactics(_planes(each))], -1) for each in boards]
    expected, won = [], np.zeros(2, int)
    for board in boards:
        after = {column: _drop(board, column, 1) for column in _free(board)}
        at_once = [column for column, each in after.items() if _has_line(each == 1)]
        by_threats = [column for column, each in after.items() if _forces(each, 1)]
        expected.append(np.isin(range(7), at_once or by_threats or list(after)))
        won += [bool(at_once), bool(by_threats and not at_once)]
    found = take_wins(np.array(planes, np.float32))
    assert won.sum() > 100
    assert min(won) > 10
    np.testing.assert_array_equal(found > 0, expected)
    np.testing.assert_allclose(found.sum(1), 1)
    assert all(len(set(row[row > 0])) == 1 for row in found), "all are equally likely"


def test_the_wrapper_shows_them_to_the_player_whose_turn_it_is():
    classic = pytest.importorskip("pettingzoo.classic")
    game = show_tactics(classic.connect_four_v3.env())
    game.reset(seed=0)
    for column in (0, 1, 0, 1, 0):
        game.step(column)
    observation = game.last()[0]["observation"]  # of the second player, whom a column threatens
    assert game.observation_space("player_0")["observation"].contains(observation)
    assert observation[..., :2].sum((0, 1)).tolist() == [2, 3]
    assert np.argwhere(observation[..., 2:5]).tolist() == [[2, 0, 1]]
    assert observation[..., 5].any(0).tolist() == [False] + 6 * [True]
