"""The flags of replay, for every algorithm that may learn from old unrolls."""

import dataclasses

from impala_mm.config import replay_mix
from impala_mm.config.flags import AUTO, Condition, flag, with_flag
from impala_mm.config.training_settings import TrainingSettings

_REPLAY = with_flag("replay")
_ANY_REPLAY = Condition("--replay", lambda c: "" if c.own_replay else _REPLAY.why_idle(c))


@dataclasses.dataclass(frozen=True)
class ReplaySettings(TrainingSettings):
    """The settings of training, and of replay."""

    # fmt: off
    replay: str = flag(
        "", group="Replay", rewrite=replay_mix.rewrite,
        text="Train on old unrolls besides new ones: the parts of every batch as "
             "KIND:SHARE:CAPACITY, separated by commas, such as "
             "queue:0.5,uniform:0.3:10000,elite:0.2:1000, or a file FILE.toml that contains them. "
             "queue: new unrolls. uniform, prioritised, attentive, elite: unrolls that the replay "
             "of this kind draws; it holds CAPACITY of them on each learner. sandbox/replay.md "
             "explains the kinds and their options. Unset: no replay.")
    replay_ratio: float = flag(
        0.0, group="Replay", least=0, needs=_REPLAY,
        text="Maximum number of updates for each new unroll of a learner: if its actors are slower "
             "it waits for them, and if they are faster they wait for it. Where fewer new unrolls "
             "have arrived than the queue's share, old ones take their places. 0: one update for "
             "as many new unrolls as the queue's share of a batch; without a queue, for as many as "
             "a batch has.")
    replay_min: int = flag(
        0, group="Replay", least=0, needs=_REPLAY,
        text="Unrolls that each learner stores before its first update. 0: batch_size.")
    replay_max_gb: float = flag(
        AUTO, group="Replay", infinite=True, least=0, own=True, auto=True,
        needs=_REPLAY,
        text="Maximum size in GB (1e9 bytes) of a learner's replay, compressed. Once this or the "
             "capacity is reached, the oldest unrolls are removed. auto: half of this machine's "
             "memory, or with replay_spill half of the disk that is free or holds earlier unrolls, "
             "divided by the learners on it.")
    replay_overflow: str = flag(
        "wait", group="Replay", choices=("wait", "keep_latest", "keep_oldest", "alternating"),
        needs=_REPLAY,
        text="What happens to unrolls that arrive faster than replay_ratio lets the learner "
             "train. wait: actors wait, and none is lost. keep_latest: they are stored, and take "
             "the places of older new ones that were not trained on yet. keep_oldest: they are "
             "discarded. alternating: every other one is discarded.")
    replay_save: bool = flag(
        False, group="Replay", own=True, needs=_ANY_REPLAY,
        text="Save each learner's replay with every checkpoint, in its own folder "
             "LOGDIR/own/learner-N on its host, so that a resumed run recovers it. Training pauses "
             "while it is written.")
    replay_spill: str = flag(
        "", group="Replay", own=True, needs=_REPLAY,
        text="Folder on a fast disk of each learner's host that holds its replay, in a subfolder "
             "for each learner. A learner that is restarted, even after kill -9, recovers its "
             "replay, except for the newest unrolls that were not yet written to a file. Unset: "
             "the replay is in memory.")
    # fmt: on
