"""The flag of shifted images, for the settings of every algorithm that shifts them."""

import dataclasses

from impala_mm.config.flags import flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class ShiftSettings(Config):
    """Settings that say by how much an update shifts images."""

    # fmt: off
    random_shift: int = flag(
        0, group="Shifted images", learner_only=True, least=0,
        text="Shift the images of each unroll in an update at random, by up to this number of "
             "pixels in each direction; the pixels of the border are repeated beyond it (DrQ and "
             "DrQ-v2: 4). What is learnt and its target see different shifts. 0: none.")
    # fmt: on
