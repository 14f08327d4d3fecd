"""Teachers that are functions: one that plays catch perfectly, and some that cannot teach."""

import numpy as np


def catcher(observations):
    """Move the paddle, in the last row, below the ball."""
    ball = np.argmax(observations[:, :-1].max(1), -1)
    paddle = np.argmax(observations[:, -1], -1)
    return np.sign(ball - paddle) + 1


def unsure(observations):
    """Return the probabilities of a policy that mostly stays."""
    return np.tile([0.25, 0.5, 0.25], [len(observations), 1])


def six_actions(observations):
    """Return the probabilities of six actions."""
    return np.tile([0.1, 0.1, 0.2, 0.2, 0.3, 0.1], [len(observations), 1])


def brightest_frame(stacks):
    """Return the number of the brightest of three frames, images [N, 2, 1, 3]."""
    return np.argmax(stacks.sum((1, 2)), -1)


def too_far(observations):
    """Return an action that catch does not have."""
    return np.full(len(observations), 3)


def no_probabilities(observations):
    """Return numbers whose sum is not 1."""
    return np.full([len(observations), 3], 0.5)


def too_few(observations):
    """Return one action, whatever was asked."""
    return np.zeros(1, int)


def broken(observations):
    """Raise an error."""
    raise ValueError("no idea")
