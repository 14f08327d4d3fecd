"""The flags of `mirrored` are those of DQN."""

from impala_mm.algorithms.q_learning.settings import DQNSettings as Settings  # noqa: F401
