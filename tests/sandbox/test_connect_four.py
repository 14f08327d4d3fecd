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


def _makes_fork(board, player):
    """Return whether the player, who has just moved, wins with the next piece, whatever happens."""
    answers = [_drop(board, column, 3 - player) for column in _free(board)]
    is_first = not _wins_at_once(board, 3 - player)
    return is_first and all(_wins_at_once(after, player) for after in answers)


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


def test_wins_at_once_forks_and_what_allows_them_are_shown():
    found = np.zeros(3, int)
    for board in _boards(np.random.default_rng(2), 12, 19, 26):
        wins, loses = np.moveaxis(tactics(_planes(board))[..., 2:], -1, 0)
        wins_at_once = _wins_at_once(board, 1)
        for column in _free(board):
            after = _drop(board, column, 1)
            cell = tuple(np.argwhere(after != board)[0])
            is_win = _has_line(after == 1)
            is_fork = not wins_at_once and _makes_fork(after, 1)
            answers = [_drop(after, answer, 2) for answer in _free(after)]
            allows_win = not is_win and (
                _wins_at_once(after, 2) or any(_makes_fork(answer, 2) for answer in answers)
            )
            if wins_at_once:
                assert wins[cell] == is_win
            assert wins[cell] or not is_fork
            assert loses[cell] or not allows_win
            found += [is_win, is_fork, allows_win]
        assert not (wins + loses)[board > 0].any()
    assert min(found) > 5


def test_who_makes_the_moves_that_are_shown_to_win_does():
    random, played = np.random.default_rng(3), 0
    for board in _boards(random, 8, 14, 20, 26):
        loses = tactics(_planes(board))[..., 3].any(0)
        starts = [board, *(3 - _drop(board, c, 1) for c in np.flatnonzero(loses))]
        for start in starts:
            after = np.where(start == 3, 0, start)  # the players change places where one has moved
            shown = tactics(_planes(after))[..., 2].any(0)
            assert shown.any() or start is board
            while shown.any():
                after = _drop(after, random.choice(np.flatnonzero(shown)), 1)
                if _has_line(after == 1):
                    played += 1
                    break
                after = _drop(after, random.choice(_free(after)), 2)
                assert not _has_line(after == 2)
                shown = tactics(_planes(after))[..., 2].any(0)
                assert shown.any()
    assert played > 100


def test_it_takes_wins_and_otherwise_any_free_column():
    boards = _boards(np.random.default_rng(0), 5, 10, 15, 20, 25, 30)
    planes = [np.concatenate([_planes(each), tactics(_planes(each))], -1) for each in boards]
    wins = [np.flatnonzero(each[..., 4].any(0)).tolist() for each in planes]
    expected = [
        np.isin(range(7), won or _free(board)) for won, board in zip(wins, boards, strict=True)
    ]
    found = take_wins(np.array(planes, np.float32))
    assert sum(map(bool, wins)) > 100
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
