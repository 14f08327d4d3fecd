"""A plain Python reference of Atari's preprocessing: one game, slow and easy to check."""

from typing import NamedTuple

import ale_py
import cv2
import numpy as np
from ale_py import roms


class Seen(NamedTuple):
    """One entry, by the conventions of `Step`."""

    reward: float
    terminated: bool
    truncated: bool
    observation: np.ndarray  # uint8 [84, 84, 1], or 3 channels
    first: bool


class Reference:
    """A reference environment, without sticky actions and no-op starts."""

    def __init__(
        self,
        rom,
        max_frames=108_000,
        life_loss_ends=True,
        no_reward_steps=0,
        fire_after_life_loss=False,
        grayscale=True,
    ):
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._emulator = ale_py.ALEInterface()
        self._emulator.setFloat("repeat_action_probability", 0.0)
        self._emulator.loadROM(roms.get_rom_path(rom))
        self._actions = self._emulator.getMinimalActionSet()
        self._max_frames, self._life_loss_ends = max_frames, life_loss_ends
        self._no_reward_steps = no_reward_steps
        self._serves, self._lost = fire_after_life_loss, False
        self._grayscale = grayscale
        self._over = True
        self.lives_lost = 0
        self.games = []  # (return, steps) of complete games
        self.episodes = []  # (return, steps) of training episodes
        self.rewards = []
        self.served = []  # rewards while FIRE was pressed after a lost life
        self._frames = 0
        self._game, self._episode = [], []  # rewards of the current game and episode

    def step(self, action):
        if self._over:
            return self._reset()
        return self._serve() if self._serves and self._lost else self._step(action)

    def game_over(self):
        return self._emulator.game_over()

    def _reset(self):
        self._emulator.reset_game()
        self._emulator.act(ale_py.Action.FIRE)
        self._over, self._lost, self._frames = False, False, 0
        return Seen(0.0, False, False, self._shrink(self._screen()), True)

    def _press(self, action):
        """Return the reward, the picture and whether a life was lost in four frames."""
        lives, reward, screens = self._emulator.lives(), 0.0, [self._screen()]
        for _ in range(4):
            reward += self._emulator.act(action)
            screens.append(self._screen())
            if self._emulator.game_over():
                break
        lost = self._emulator.lives() < lives
        self.lives_lost += lost
        return reward, self._shrink(np.maximum(screens[-1], screens[-2])), lost

    def _serve(self):
        reward, picture, self._lost = self._press(ale_py.Action.FIRE)
        self.served.append(reward)
        return Seen(0.0, False, False, picture, True)

    def _step(self, action):
        reward, picture, lost = self._press(self._actions[action])
        self._lost, self._frames = lost, self._frames + 4
        terminated = self._emulator.game_over() or (self._life_loss_ends and lost)
        self.rewards.append(reward)
        self._game.append(reward)
        self._episode.append(reward)
        idle = self._no_reward_steps
        overdue = self._frames >= self._max_frames or (
            idle > 0 and len(self._game) >= idle and not any(self._game[-idle:])
        )
        truncated = overdue and not terminated
        self._over = self._emulator.game_over() or overdue
        if terminated or truncated:
            self.episodes.append((sum(self._episode), len(self._episode)))
            self._episode = []
        if self._over:
            self.games.append((sum(self._game), len(self._game)))
            self._game = []
        return Seen(reward, terminated, truncated, picture, False)

    def _screen(self):
        emulator = self._emulator
        return emulator.getScreenGrayscale() if self._grayscale else emulator.getScreenRGB()

    @staticmethod
    def _shrink(screen):
        return cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA).reshape(84, 84, -1)
