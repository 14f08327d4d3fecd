"""The flags of features, and others that settings of several algorithms join with their own.

The classes stand apart from the features because settings must not import TensorFlow.
"""

import dataclasses
import math
from typing import ClassVar

from impala_mm.config.environment_flags import PAST, RANDOM, SELF, read_opponents
from impala_mm.config.errors import UserMistake
from impala_mm.config.flags import AUTO, Condition, flag, with_flag, with_number, without_flag
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class HindsightSettings(Config):
    """The settings of a process of an algorithm that may learn in hindsight."""

    # fmt: off
    her_ratio: int = flag(
        0, group="Hindsight", least=0,
        text="Hindsight experience replay (HER), for environments with goals: how often a step is "
             "trained with a goal that the agent reached later in the episode, for each time with "
             "its own goal; usually 4. 0: off.")
    her_window: int = flag(
        50, group="Hindsight", least=1, only_with=with_flag("her_ratio"),
        text="Number of steps, from a step on and including it, from which its goals in hindsight "
             "are taken; fewer where the episode ends. An actor sends a step once it knows these.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse hindsight where an actor cannot hold back its unrolls, or has no games."""
        super().__post_init__()
        if self.her_ratio and self.inference == "learner":
            raise ValueError(
                f"--her_ratio={self.her_ratio}: only an actor that chooses actions itself can give "
                f"its steps other goals: use --inference=actor"
            )
        if self.her_ratio and self.deterministic_run:
            raise ValueError(
                f"--her_ratio={self.her_ratio} with --deterministic_run: in each turn an actor "
                f"sends what it has played, and steps wait for later goals: leave one of them out"
            )
        if self.her_ratio and self.uses_recorded_games:
            raise ValueError(
                f"--her_ratio={self.her_ratio}: recorded games have no goals that were reached "
                f"later: leave it out, or train without --offline_updates and --teacher_data_share"
            )


_GROUP = "Teacher"
RECORDED_GAMES = with_flag("offline_updates") | with_flag("teacher_data_share")


def columns_beside(columns: int, share: float) -> int:
    """Return how many columns beside `columns` are a share of all; 1 stands for all of them.

    Raises UserMistake if the nearest share that whole columns make differs by over a quarter.
    """
    if share == 1:
        return columns
    below = int(columns * share / (1 - share))
    beside = min(max(below, 1), below + 1, key=lambda n: abs(n / (columns + n) - share))
    if abs((nearest := beside / (columns + beside)) - share) > share / 4:
        raise UserMistake(
            f"--teacher_data_share={share:g}: beside the {columns} columns of an update, the "
            f"nearest share that whole columns make is {nearest:.4g}: give that, or a larger "
            f"--batch_size (for SAC: --minibatch_steps)"
        )
    return beside


def share_beside(columns: int, share: float) -> float:
    """Return the share that the columns of `columns_beside` make."""
    beside = columns_beside(columns, share)
    return beside / (columns + beside)


_TEACHER = with_flag("teacher")
_NAMED_OPPONENTS = Condition(
    "an opponent's name in --opponents",
    lambda c: (
        ""
        if read_opponents(c.opponents).keys() - {SELF, PAST, RANDOM}
        else f"with --opponents={c.opponents}"
    ),
)
_COST = with_flag("teacher_cost")
_DISTILS = _TEACHER & _COST
_GUIDES = with_flag("guide_steps") | with_flag("guide_share")
# Where a policy learns from recorded games, their actions have the teacher's cost.
_LEARNT = Condition(
    "--teacher or, for a policy, --offline_updates",
    lambda c: "" if c.offline_updates and not c.learns_from_any_policy else _TEACHER.why_idle(c),
)
_DISTILS_MARGIN = Condition(
    "--distill=margin", lambda c: "" if "margin" in c.distilled else f"with --distill={c.distill}"
)
_MARGIN = Condition(
    "--distill=margin or --margin_cost",
    lambda c: "" if getattr(c, "margin_cost", 0) else (_DISTILS & _DISTILS_MARGIN).why_idle(c),
)
_FOLLOWS_SCORE = Condition(
    "--teacher_method=qdagger or dqfd",
    lambda c: "" if c.follows_score else f"with --teacher_method={c.teacher_method}",
)
# With --mode=reincarnate the student's returns are compared with these, whatever the method.
_RETURNS = Condition(
    f"{_FOLLOWS_SCORE.words}, or --mode=reincarnate",
    lambda c: (
        "" if c.teacher and c.mode == "reincarnate" else (_DISTILS & _FOLLOWS_SCORE).why_idle(c)
    ),
)

# By the name of --distill, what the loss compares.
DISTILLED = {
    "policy": ("policy",),
    "value": ("value",),
    "policy_and_value": ("policy", "value"),
    "best_action": ("best_action",),
    "margin": ("margin",),
}
_BY_SCORE = ("qdagger", "dqfd")  # methods whose cost follows the student's score


def action_numbers(text: str) -> tuple[int | None, ...]:
    """Return the numbers of a text such as 2,0,-,1, with None for each `-`; raise ValueError."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "-" or part.isdecimal() for part in parts):
        raise ValueError(
            "it must be the number of the teacher's action for each action of the student, or - "
            "for one that the teacher lacks, separated by commas, such as 2,0,-,1"
        )
    numbers = [None if part == "-" else int(part) for part in parts]
    known = [number for number in numbers if number is not None]
    if len(set(known)) < len(known):
        raise ValueError("each of the teacher's actions may stand in it once")
    if not known:
        raise ValueError("it must name an action of the teacher")
    return tuple(numbers)


@dataclasses.dataclass(frozen=True)
class TeacherSettings(Config):
    """The flags of an algorithm that may learn from a teacher, and from recorded games."""

    # Whether the student computes values of actions, of which the softmax is its policy.
    computes_action_values: ClassVar[bool] = False

    # fmt: off
    offline_updates: int = flag(
        0, group=_GROUP, learner_only=True, least=0,
        text="Updates from recorded games with which a run begins, before its actors play. The "
             "games are those of teacher_data; without it, the teacher plays them first. With "
             "num_actors=0 the run ends after them, and an evaluator tests its checkpoints. "
             "sandbox/offline.md explains what is learned from them.")
    teacher_data: str = flag(
        "", group=_GROUP, learner_only=True, needs=RECORDED_GAMES,
        text="Folder of recorded games, as --mode=record writes them, for offline_updates and "
             "teacher_data_share; several, separated by commas. Every learner reads them, and each "
             "learns from its share.")
    teacher_data_share: float = flag(
        0.0, group=_GROUP, learner_only=True, least=0, most=0.99,
        text="Share of recorded games in each update while actors play, for algorithms with a "
             "replay: unrolls beside those of batch_size, for SAC, TD3, MPO and IQL steps beside "
             "those of minibatch_steps. They are never replaced, and are drawn uniformly. 0: none.")
    teacher_steps: int = flag(
        50_000, group=_GROUP, learner_only=True, least=1,
        only_with=RECORDED_GAMES & with_flag("teacher") & without_flag("teacher_data"),
        text="Steps that the teacher plays at the start of a run with offline_updates or "
             "teacher_data_share, unless teacher_data has recorded games; games that have begun "
             "are played to their ends. Several learners share them.")
    teacher: str = flag(
        "", group=_GROUP, learner_only=True,
        short="policy to learn from: a run, a checkpoint, your function, ...",
        text="Policy that the student learns from: the folder of a run, of one checkpoint or of "
             "an export, the name of a policy of this package, my_package:function for a "
             "function of yours, or a checkpoint of Dopamine's DQN, C51, Rainbow or "
             "IQN; several, separated by commas, teach with equal weight. Every learner reads it "
             "when it starts. sandbox/teachers.md explains it.")
    teacher_method: str = flag(
        "kickstarting", group=_GROUP, learner_only=True,
        choices=("kickstarting", "qdagger", "dqfd", "constant"),
        only_with=_DISTILS,
        text="How the teacher's cost falls. kickstarting: linearly from teacher_cost to 0 over "
             "teacher_frames. qdagger: it is teacher_cost x (1 - s), limited to between 0 and "
             "teacher_cost, for the student's score s, its mean return on a scale from 0 for a "
             "random policy to 1 for the teacher; after teacher_frames it is 0. dqfd: like "
             "qdagger, with distill=margin. constant: it does not fall; if teacher_frames is "
             "given, it is 0 from there on. Once it is 0 it stays 0.")
    distill: str = flag(
        "auto", group=_GROUP, learner_only=True, choices=("auto", *DISTILLED),
        needs=_TEACHER, only_with=_DISTILS,
        text="What the student takes over. policy: the divergence KL(teacher || pi) is in the "
             "loss, where the policy of a student that computes values of actions is softmax("
             "values / teacher_temperature). value: the squared difference from the teacher's "
             "values, if it has any. policy_and_value: the sum of both. best_action: the negative "
             "log-probability of the teacher's most likely action. margin: how far the value of "
             "any other action, plus teacher_margin, is above that of the teacher's most likely "
             "one. auto: policy; with teacher_method=dqfd margin.")
    teacher_cost: float = flag(
        1.0, group=_GROUP, learner_only=True, least=0, auto=True, only_with=_LEARNT,
        text="Weight in the loss, at the start, of what distill names, on average over steps. "
             "auto: 1; for the policy of DQN, R2D2 and PQN, without a distribution of returns, 3.")
    teacher_frames: float = flag(
        AUTO, group=_GROUP, infinite=True, learner_only=True, least=1, auto=True,
        only_with=_TEACHER & (_COST | _GUIDES),
        text="Environment frames from which on the teacher's cost is 0. auto: half of "
             "total_environment_frames; with teacher_method=constant never, though guide_steps and "
             "guide_share fall as with the others.")
    teacher_rate: float = flag(
        0.0, group=_GROUP, learner_only=True, least=0, needs=_TEACHER, only_with=_DISTILS,
        text="Learning rate while the teacher's cost is the one at the start; as the cost falls, "
             "the rate moves in proportion to the one of learning_rate and its schedule. 0: it is "
             "always that one.")
    teacher_temperature: float = flag(
        0.1, group=_GROUP, learner_only=True, least=1e-6, only_with=_DISTILS,
        text="For a teacher, or a student, that computes values of actions, as DQN does: its "
             "policy is softmax(values / teacher_temperature). The smaller it is, the more the "
             "best action counts.")
    teacher_margin: float = flag(
        1.0, group=_GROUP, learner_only=True, least=0, only_with=_MARGIN,
        text="With distill=margin or margin_cost, by how much the value of the teacher's, or of "
             "the recorded, action is to exceed those of all others, after value_rescaling.")
    teacher_actions: str = flag(
        "", group=_GROUP, learner_only=True, parse=action_numbers, needs=_TEACHER,
        text="Order of the teacher's actions, if it differs: for each action of the student the "
             "number of the teacher's, separated by commas, such as 2,0,1, or - for an action "
             "that the teacher lacks. Unset: the same order.")
    teacher_return: float = flag(
        -math.inf, group=_GROUP, learner_only=True, needs=_TEACHER, only_with=_RETURNS,
        text="The teacher's mean return, for teacher_method=qdagger and dqfd. -inf: it plays "
             "teacher_episodes games at the start of the run.")
    random_return: float = flag(
        -math.inf, group=_GROUP, learner_only=True, only_with=_RETURNS,
        text="Mean return of a random policy, for teacher_method=qdagger and dqfd. -inf: the "
             "published one for a single level of Atari or DMLab; for others, and for several, "
             "random actions play teacher_episodes games of each at the start of the run.")
    teacher_episodes: int = flag(
        32, group=_GROUP, learner_only=True, least=1, only_with=_RETURNS,
        text="Games, for each level, over which the mean returns of teacher and random actions "
             "are measured.")
    guide_steps: int = flag(
        0, group=_GROUP, least=0, needs=_TEACHER,
        text="Steps at the start of an episode in which the teacher acts in place of the student "
             "(jump-start RL), for IMPALA and algorithms with a replay: a number drawn uniformly "
             "from 1 to this one, which falls linearly to 0 until teacher_frames. Actors need the "
             "teacher then, too. Returns include its steps, and while it acts none ends the run "
             "(stop_at_return) or makes a checkpoint the best. 0: it does not act.")
    guide_share: float = flag(
        0.0, group=_GROUP, least=0, most=1, needs=_TEACHER,
        text="Share of an episode's later steps in which the teacher acts; it falls likewise.")
    trust_teacher: bool = flag(
        False, group=_GROUP, learner_only=True, needs=_TEACHER | _NAMED_OPPONENTS,
        text="Load a teacher or an opponent that is a SavedModel of another program, or a run "
             "whose algorithm is a module that is neither of this package nor the student's. Both "
             "are programs, which may read and write your files: give this flag only if you know "
             "where they are from.")
    # fmt: on

    @property
    def uses_recorded_games(self) -> bool:
        """Whether the run needs recorded games."""
        return bool(self.offline_updates or self.teacher_data_share)

    @property
    def planned_offline_updates(self) -> int:
        """The number of updates from recorded games with which the run begins."""
        return self.offline_updates

    @property
    def guides(self) -> bool:
        """Whether the teacher acts in actors."""
        return bool(self.guide_steps or self.guide_share)

    @property
    def distils(self) -> bool:
        """Whether a teacher is part of the loss."""
        return bool(self.teacher) and self.teacher_cost != 0

    @property
    def follows_score(self) -> bool:
        """Whether the teacher's cost follows the student's score."""
        return self.teacher_method in _BY_SCORE

    @property
    def distilled(self) -> tuple[str, ...]:
        """What the loss compares, of "policy", "value", "best_action" and "margin"."""
        usual = "margin" if self.teacher_method == "dqfd" else "policy"
        return DISTILLED[usual if self.distill == "auto" else self.distill]

    @property
    def full_teacher_cost(self) -> float:
        """The teacher's cost at the start, which --teacher_cost stands for."""
        return 1.0 if self.teacher_cost == AUTO else self.teacher_cost

    def __post_init__(self) -> None:
        """Refuse flags that do not fit together."""
        super().__post_init__()
        self._check_recorded_games()
        if self.offline_updates and self.teacher_cost == 0 and not self.learns_from_any_policy:
            raise ValueError(
                f"--offline_updates={self.offline_updates}: with --teacher_cost=0 a policy learns "
                f"nothing from recorded games: give a cost, or leave --offline_updates at 0"
            )
        is_of_values = self.distils and self.distilled == ("value",)
        if self.offline_updates and is_of_values and not self.learns_from_any_policy:
            raise ValueError(
                f"--offline_updates={self.offline_updates} with --distill=value: the policy would "
                f"learn nothing from recorded games: use --distill=policy_and_value"
            )
        if self.teacher:
            self._check_distilled()
            if self.guides:
                self._check_guide()

    def _check_recorded_games(self) -> None:
        share = f"--teacher_data_share={self.teacher_data_share:g}"
        if self.teacher_data_share and not self.learns_from_any_policy:
            raise ValueError(
                f"{share}: --algorithm={self.algorithm} must know how likely the policy that "
                f"played was to act so, which recorded games do not say: use --offline_updates, or "
                f"--algorithm=dqn, r2d2, sac, td3, mpo or iql"
            )
        if self.uses_recorded_games and not (self.teacher_data or self.teacher):
            asked = f"--offline_updates={self.offline_updates}" if self.offline_updates else share
            raise ValueError(
                f"{asked} needs recorded games: give --teacher_data, or a --teacher who plays them"
            )

    def _check_guide(self) -> None:
        flag = "guide_steps" if self.guide_steps else "guide_share"
        given = f"--{flag}={getattr(self, flag)}"
        if self.rounds:
            raise ValueError(
                f"{given}: --algorithm={self.algorithm} learns from what its own policy has "
                f"played, and the teacher's steps are not: let IMPALA, DQN, R2D2 or SAC learn "
                f"from them"
            )
        if self.follows_score and self.distils:
            raise ValueError(
                f"{given}: with --teacher_method={self.teacher_method} the teacher's cost follows "
                f"the mean return, which is also the teacher's while it acts: use "
                f"--teacher_method=kickstarting or constant, or --teacher_cost=0"
            )
        if self.inference == "learner":
            raise ValueError(
                f"{given}: the teacher acts in the actors, and with --inference=learner they have "
                f"no network; give --inference=actor"
            )

    def _check_distilled(self) -> None:
        asked = f"--distill={self.distill}"
        if self.teacher_method == "dqfd":
            asked = "--teacher_method=dqfd"
            if self.distilled != ("margin",):
                raise ValueError(
                    f"{asked} with --distill={self.distill}: its loss is the margin: leave "
                    f"--distill out, or use --teacher_method=qdagger"
                )
        if "margin" in self.distilled and not self.computes_action_values:
            raise ValueError(
                f"{asked} compares values of actions, of which --algorithm={self.algorithm} has no "
                f"policy: use --distill=best_action, or --algorithm=dqn"
            )


_REGULARISERS = "Regularisers"
_REFERENCE = with_flag("kl_ref_pi_cost") | with_number("target_kl_ref_pi")
_TARGETS = (
    with_number("target_entropy")
    | with_number("target_kl_pi_mu")
    | with_number("target_kl_mu_pi")
    | with_number("target_kl_ref_pi")
)
_WEIGHT = "Weight in the loss of the mean divergence "


def _target(divergence: str, cost: str) -> str:
    """Return the help of a flag for a divergence's target; `cost` is the flag of its cost."""
    return (
        f"Mean of {divergence}, in nats, at which a Lagrange multiplier holds it; the multiplier "
        f"takes the place of {cost}, which is its initial value (1 if that is 0). Where the "
        f"divergence stays below without help, the cost falls to 1e-6. 0 counts as a target; inf: "
        f"{cost} is fixed."
    )


@dataclasses.dataclass(frozen=True)
class RegulariserSettings(Config):
    """The flags of an algorithm whose loss has regularisers."""

    # fmt: off
    target_entropy: float = flag(
        -math.inf, group=_REGULARISERS, learner_only=True,
        text="Mean entropy of the policy, in nats, at which a Lagrange multiplier holds it; the "
             "multiplier takes the place of entropy_cost, which is its initial value (0.01 if that "
             "is 0). Where the entropy stays above without help, the cost falls to 1e-6. 0 counts "
             "as a target; -inf: entropy_cost is fixed.")
    kl_pi_mu_cost: float = flag(
        0.0, group=_REGULARISERS, learner_only=True, least=0, most=1e6,
        text=f"{_WEIGHT}KL(pi || mu) per step, from the policy in training to the one that played. "
             f"It keeps the policy from doing what was unlikely. Replayed unrolls do not count.")
    target_kl_pi_mu: float = flag(
        math.inf, group=_REGULARISERS, learner_only=True, least=0,
        text=_target("KL(pi || mu)", "kl_pi_mu_cost"))
    kl_mu_pi_cost: float = flag(
        0.0, group=_REGULARISERS, learner_only=True, least=0, most=1e6, auto=True, with_box=1.0,
        text=f"{_WEIGHT}KL(mu || pi) per step, from the policy that played to the one in training. "
             f"It keeps what was likely, and so bounds how far the policy moves during the policy "
             f"lag. Replayed unrolls do not count. auto: what the run in logdir has recorded; for "
             f"a new run, 1 if an action contains numbers (Box) and no teacher acts, otherwise 0.")
    target_kl_mu_pi: float = flag(
        math.inf, group=_REGULARISERS, learner_only=True, least=0,
        text=_target("KL(mu || pi)", "kl_mu_pi_cost"))
    kl_ref_pi_cost: float = flag(
        0.0, group=_REGULARISERS, learner_only=True, least=0, most=1e6,
        text=f"{_WEIGHT}KL(reference || pi) per step, from a reference policy to the one in "
             f"training; see reference.")
    target_kl_ref_pi: float = flag(
        math.inf, group=_REGULARISERS, learner_only=True, least=0,
        text=_target("KL(reference || pi)", "kl_ref_pi_cost"))
    reference: str = flag(
        "", group=_REGULARISERS, learner_only=True, needs=_REFERENCE,
        text="Folder of the run, or of one checkpoint, whose policy is the reference of "
             "kl_ref_pi_cost; every learner reads it when it starts. A recurrent one begins each "
             "unroll without a memory. Unset: the policy whose parameters are all 0. It chooses "
             "among all choices with the same probability, and a Box's numbers around 0 with a "
             "deviation of 0.6, where bounds are -1 and 1.")
    multiplier_speed: float = flag(
        0.3, group=_REGULARISERS, learner_only=True, least=0, most=10, only_with=_TARGETS,
        text="Speed of the Lagrange multipliers: each step of the optimizer changes the logarithm "
             "of a multiplier by this number times the distance of its quantity from the target, "
             "in units of the target (of 1 if that is 0) and at most 1.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse an entropy that no policy has."""
        super().__post_init__()
        if self.target_entropy == math.inf:
            raise ValueError(
                "--target_entropy=inf: no policy has that entropy; give a number of nats, or -inf "
                "for a fixed --entropy_cost"
            )


@dataclasses.dataclass(frozen=True)
class NoveltySettings(Config):
    """The flags of an algorithm that may look for what is new to it."""

    # fmt: off
    rnd_weight: float = flag(
        0.0, group="Novelty", least=0,
        text="Random network distillation (RND): weight of the advantages of rewards for "
             "observations that a network of its own cannot predict yet, usually 1. 0: off.")
    rnd_task_weight: float = flag(
        2.0, group="Novelty", learner_only=True, least=0, only_with=with_flag("rnd_weight"),
        text="Weight of the advantages of the environment's rewards beside those of RND.")
    rnd_discounting: float = flag(
        0.99, group="Novelty", learner_only=True, least=0, most=1,
        only_with=with_flag("rnd_weight"),
        text="Discount of RND's rewards per step; their lambda is gae_lambda. Their returns go on "
             "over the ends of episodes.")
    rnd_share: float = flag(
        0.25, group="Novelty", learner_only=True, least=1e-3, most=1,
        only_with=with_flag("rnd_weight"),
        text="Share of the steps of each minibatch, drawn at random, from which RND's predictor "
             "learns. The more environments play, the smaller it should be.")
    # fmt: on


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
