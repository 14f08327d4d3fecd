"""Small games whose actions are of other spaces than Discrete.

`Locks` has MultiDiscrete actions and `Harbour` a Dict of all spaces; `Signals` has observations of
all spaces but texts, which `Tales` has. Every observation says what the best action is; an episode
has ten steps, and each is worth at most 1.

`Doors`, `Rooms` and `Stalls` offer masks of their actions, each at another place, and raise an
error if a forbidden action arrives. Their best action is always allowed.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple


class _Game(gymnasium.Env):
    """A game of ten steps, each with a new observation."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._look(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = self._reward(action)
        self._steps += 1
        return self._look(), reward, False, self._steps == 10, {}


class Locks(_Game):
    """Three locks, each of which opens by its own key; by chance 3.6 of 10."""

    action_space = MultiDiscrete([2, 3, 4], start=[0, 5, -1])
    observation_space = Box(0, 1, [9], np.float32)

    def _look(self):
        self._keys = self.np_random.integers(self.action_space.nvec)
        rows = [np.eye(n)[key] for n, key in zip(self.action_space.nvec, self._keys, strict=True)]
        return np.concatenate(rows).astype(np.float32)

    def _reward(self, action):
        return float(np.mean(action == self._keys + self.action_space.start))


class Tales(_Game):
    """A sentence about two animals, of which the first one is the answer; by chance 2.5 of 10."""

    animals = ("cat", "dog", "fox", "owl")
    action_space = Discrete(4)
    observation_space = Dict(tale=Text(60), hour=Discrete(3))

    def _look(self):
        self._bites, bitten = self.np_random.permutation(4)[:2]
        tale = f"The {self.animals[self._bites]} bites the {self.animals[bitten]}, I saw."
        return {"tale": tale, "hour": self.np_random.integers(3)}

    def _reward(self, action):
        return float(action == self._bites)


class Harbour(_Game):
    """A ship whose course, speed, lamps and anchor follow the pilot's signals."""

    action_space = Dict(
        course=Box(-3, 3, (1,)),
        anchor=Discrete(2, start=4),
        lamps=MultiBinary(2),
        engine=Tuple([Box(0, 10, (), np.float64), Discrete(3)]),
    )
    observation_space = Box(-1, 1, [6], np.float32)

    def _look(self):
        self._signals = self.np_random.uniform(-1, 1, 6).astype(np.float32)
        return self._signals

    def _reward(self, action):
        course, anchor, *lamps, speed, gear = self._signals.tolist()
        power, shift = action["engine"]
        return float(
            np.mean(
                [
                    1 - abs(action["course"][0] / 3 - course),
                    action["anchor"] == (5 if anchor > 0 else 4),
                    np.mean(action["lamps"] == (np.array(lamps) > 0)),
                    1 - abs(power / 5 - 1 - speed),
                    shift == int((gear + 1) * 1.499),
                ]
            )
        )


class Signals(_Game):
    """Signals of every kind of space, each of which says what one of the choices must be."""

    action_space = MultiDiscrete([4, 2, 3, 2])
    observation_space = Dict(
        flag=Discrete(4, start=1),
        inside=Tuple([MultiBinary(1), MultiDiscrete([3, 2], start=[7, 0])]),
        light=Box(0, 255, (36, 36, 1), np.uint8),
        wind=Box(-1, 1, (), np.float64),
    )

    def _look(self):
        self._due = flag, bit, number, light = self.np_random.integers(self.action_space.nvec)
        picture = np.zeros((36, 36, 1), np.uint8)
        picture[:18] = 255 * light
        picture[18:] = 255 * (1 - light)
        return {
            "flag": np.int64(flag + 1),
            "inside": (np.array([bit], np.int8), np.array([number + 7, 1])),
            "light": picture,
            "wind": np.array(self.np_random.uniform(-1, 1)),
        }

    def _reward(self, action):
        return float(np.mean(action == self._due))


class _Masked(_Game):
    """A game whose mask changes with each step; its actions are numbers of choices."""

    def _allow(self, n):
        """Return a random mask of n choices that allows at least one, and one of the allowed."""
        mask = self.np_random.random(n) < 0.5
        mask[self.np_random.integers(n)] = True
        return mask, self.np_random.choice(np.flatnonzero(mask))

    def _look(self):
        drawn = [self._allow(n) for n in self.choices]
        self.allowed, self._due = [mask for mask, _ in drawn], [due for _, due in drawn]
        rows = [np.eye(n)[due] for n, due in zip(self.choices, self._due, strict=True)]
        return np.concatenate(rows).astype(np.float32)

    def _reward(self, action):
        chosen = self._chosen(action)
        allowed = [mask[i] for mask, i in zip(self.allowed, chosen, strict=True)]
        assert all(allowed), f"{action} is forbidden by {self.allowed}"
        return float(np.mean(np.array(chosen) == self._due))


class Doors(_Masked):
    """Five doors, of which some are closed; the mask is in the info. By chance 4.6 of 10."""

    choices = (5,)
    action_space = Discrete(5, start=1)
    observation_space = Box(0, 1, [5], np.float32)

    def _chosen(self, action):
        return [action - 1]

    def _offer(self):
        return {"action_mask": self.allowed[0].astype(np.int8)}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self._offer()

    def step(self, action):
        return *super().step(action)[:-1], self._offer()


class Rooms(_Masked):
    """Doors of several rooms at once; the mask is what a method returns."""

    choices = 2, 3, 4
    action_space = MultiDiscrete([2, 3, 4], start=[0, 5, -1])
    observation_space = Box(0, 1, [9], np.float32)

    def _chosen(self, action):
        return (action - self.action_space.start).tolist()

    def action_masks(self):
        return np.concatenate(self.allowed)


class Stalls(_Masked):
    """Goods, amounts, lamps and a price; the mask is a part of the observation."""

    choices = 4, 3, 2, 2, 2
    action_space = Dict(
        goods=Discrete(4),
        amounts=MultiDiscrete([3, 2]),
        lamps=MultiBinary(2),
        price=Box(0, 1, (1,)),
    )
    observation_space = Dict(
        seen=Box(0, 1, [13], np.float32),
        action_mask=Dict(
            goods=MultiBinary(4),
            amounts=Tuple([MultiBinary(3), MultiBinary(2)]),
            lamps=MultiBinary([2, 2]),
        ),
    )

    def _chosen(self, action):
        return [int(action["goods"]), *action["amounts"].tolist(), *action["lamps"].tolist()]

    def _look(self):
        seen = super()._look()
        goods, first, second, *lamps = [mask.astype(np.int8) for mask in self.allowed]
        mask = {"goods": goods, "amounts": (first, second), "lamps": np.stack(lamps)}
        return {"seen": seen, "action_mask": mask}


for _class in (Doors, Rooms, Stalls):
    gymnasium.register(f"{_class.__name__}-v0", _class)
gymnasium.register("Signals-v0", Signals)
gymnasium.register("Locks-v0", Locks)
gymnasium.register("Harbour-v0", Harbour)
gymnasium.register("Tales-v0", Tales)
