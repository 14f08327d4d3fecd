"""The flags of training that all algorithms share: data, environment, algorithm, replay."""

import dataclasses

from impala_mm.config import environment_flags, replay_mix
from impala_mm.config.flags import (
    AUTO,
    Condition,
    flag,
    in_mode,
    whole_numbers,
    with_flag,
    without_flag,
)

_CLIPPED = Condition(
    "--gradients_clipping",
    lambda config: "" if config.gradients_clipping >= 0 else "without --gradients_clipping",
)

_REPLAY = with_flag("replay")
_ANY_REPLAY = Condition("--replay", lambda c: "" if c.own_replay else _REPLAY.why_idle(c))


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """The settings of training."""

    # fmt: off
    # -- Data
    batch_size: int = flag(
        8, group="Data", least=1,
        short="unrolls per learner and update",
        text="Unrolls that each learner trains on in one update.")
    unroll_length: int = flag(
        20, group="Data", least=1,
        short="steps in an unroll",
        text="Environment steps in one unroll.")
    queue_capacity: int = flag(
        0, group="Data", least=0, own=True,
        text="Unrolls that a learner's queue holds; while it is full, actors wait. 0: "
             "batch_size.")
    min_pull_secs: float = flag(
        -1, group="Data", only_with=with_flag("inference", "actor", "auto"),
        text="Minimum number of seconds between two downloads of parameters to a host; all actors "
             "of the host share a download. Negative: long enough that a host's downloads use at "
             "most 10% of a 1 Gbit/s link.")
    parameter_dtype: str = flag(
        "float32", group="Data", choices=("float32", "float16"),
        text="Data type in which trained weights are sent to the actors. float16 halves their "
             "size; actors then choose actions with rounded weights.")
    compression: str = flag(
        "auto", group="Data", choices=("auto", "none", "lz4"), own=True,
        text="How an actor compresses what it sends: unrolls, or observations with "
             "inference=learner. Learners accept either, so actors may differ. auto: lz4 for "
             "uint8 images, otherwise none.")

    # -- Environment
    env_kwargs: str = flag(
        "", group="Environment", rewrite=environment_flags.kwargs_text,
        text="Arguments with which environments are made, as a JSON object: "
             "--env_kwargs='{\"is_slippery\": false}'. gymnasium.make receives them, or the "
             "function or class that level_name names; with several levels, each of them does. "
             "Unset: none.")
    env_wrappers: str = flag(
        "", group="Environment", rewrite=environment_flags.wrappers_text,
        text="Wrappers around each environment, separated by commas, the outermost last: "
             "my_package:MyWrapper,gymnasium.wrappers:FlattenObservation. A wrapper's arguments "
             "follow its name as a JSON object: "
             "'gymnasium.wrappers:TimeLimit{\"max_episode_steps\": 100}'. Unset: no wrappers.")
    discretization: str = flag(
        "none", group="Environment", choices=("none", "lin", "log"),
        text="Replace each number of a Box action by a choice among n_actions_per_dim numbers. "
             "lin: evenly spaced between the bounds. log: the middle, and on both sides distances "
             "that grow by equal factors up to the bound. none: leave the actions as they are.")
    n_actions_per_dim: int = flag(
        11, group="Environment", least=2, only_with=with_flag("discretization", "lin", "log"),
        text="Choices for each number of an action, with discretization.")
    action_ratio: float = flag(
        30.0, group="Environment", least=1, only_with=with_flag("discretization", "log"),
        text="With discretization=log: the largest distance to the middle, divided by the "
             "smallest.")
    num_action_repeats: int = flag(
        0, group="Environment", least=0,
        text="Environment frames per step: each action is repeated for this number of frames, "
             "and the rewards are summed. 0: the environment's own number (usually 4 for Atari, "
             "1 for all others).")
    width: int = flag(
        0, group="Environment", least=0,
        text="Width in pixels to which images are resized. 0: images keep their width (Atari: "
             "84).")
    height: int = flag(
        0, group="Environment", least=0,
        text="Height in pixels to which images are resized. 0: images keep their height (Atari: "
             "84).")
    convert_observations: bool = flag(
        True, group="Environment",
        text="Convert observations to what networks read best: images [channels, height, width] "
             "and grey images [height, width] of at least 36x36 pixels to [height, width, "
             "channels], images of that size of numbers from 0 to 1 to bytes, and choices among "
             "more than 64 to numbers, which the network embeds. False: images stay as they are, "
             "and all choices become one-hot vectors, as in earlier versions.")
    opponents: str = flag(
        environment_flags.OPPONENTS, group="Environment", rewrite=environment_flags.opponents_text,
        text="Who plays the other agents of an environment whose agents take turns, drawn for "
             "each game by these weights. random: random actions. self: the newest policy. past: "
             "earlier policies, those more often against which the policy scores worse. Others "
             "are a run's folder, an exported policy, the name of a policy of this package, or a "
             "function, as for --teacher: my_module:function:0.3. --mode=test, --mode=record and "
             "evaluators play against random ones unless they are given others.")
    sticky_actions: float = flag(
        -1, group="Environment", most=1,
        text="Atari only: probability, at each frame, that the emulator repeats the previous "
             "action instead of the chosen one. Negative: the value of the id (0.25 for v0 and "
             "v5, 0 for v4).")
    life_loss_ends: bool = flag(
        True, group="Environment",
        text="Atari only: a lost life ends the episode that is learnt from, and no later reward "
             "counts for earlier actions. False: only the end of the game does. Scores, tests and "
             "evaluations are always of complete games.")
    no_reward_steps: int = flag(
        0, group="Environment", least=0,
        text="Atari only: consecutive steps without a reward after which a game is truncated and "
             "a new one starts. 0: never. Tests and evaluators do not take the run's number: "
             "unset, theirs is 1,000 with deterministic, otherwise 0.")
    full_action_space: bool = flag(
        False, group="Environment",
        text="Atari only: use all 18 actions instead of those that have an effect in the game.")
    fire_after_life_loss: bool = flag(
        False, group="Environment",
        text="Atari only: press FIRE for the agent after each lost life, for as long as a step "
             "lasts. As in a reset, nothing is learnt from it, its frames are not counted, and "
             "the network begins anew with the picture after it.")
    no_ops: int = flag(
        30, group="Environment", least=0,
        text="Atari only: a game begins with at most this number of frames without an action, "
             "drawn at random.")
    grayscale: bool = flag(
        True, group="Environment",
        text="Atari only: pictures in grey. False: in colours, red, green and blue, which are "
             "three times as many bytes.")
    frame_stack: int = flag(
        4, group="Environment", least=1, kept_by="weights",
        text="Atari only: the network sees this number of newest pictures at once. Each is sent "
             "and stored once.")

    # -- Algorithm
    algorithm: str = flag(
        "impala", group="Algorithm", by_run=True, kept_by="weights",
        short="impala, ppo, dqn, sac or nine others, or yours",
        text="impala, ppo, a2c, vpg, awr, vmpo, dqn, r2d2, pqn, sac, td3, mpo, iql, or a module of "
             "your own (package.module); impala_mm/algorithms/interface.py says what it must "
             "define. Each has flags and defaults of its own, which --help --algorithm=NAME shows.")
    xla: bool = flag(
        False, group="Algorithm", by_run=True,
        text="Compile the forward and backward pass with XLA, at the first update. Meant for "
             "GPUs: on a CPU, convolutions took 1.3 to 1.4 times as long with it, an LSTM 0.6 "
             "times. All gradients are then ready at the same time, so allreduce=each has "
             "nothing to overlap.")
    discounting: float = flag(
        0.99, group="Algorithm", least=0, most=1,
        short="discount factor per step",
        text="Discount factor (gamma) per step, or per environment frame with "
             "discount_per_frame.")
    discount_per_frame: bool = flag(
        False, group="Algorithm", by_run=True,
        text="Discount by environment frames: a step's factor is discounting to the power of the "
             "frames that it takes (num_action_repeats). So discounting need not change with the "
             "number of repeats to keep the same horizon in seconds of the game.")
    max_abs_reward: float = flag(
        float("inf"), group="Algorithm", least=1e-6,
        text="Largest absolute reward: larger ones are clipped to it, after normalize_rewards and "
             "before reward_scaling. inf: no clipping.")
    reward_scaling: float = flag(
        1.0, group="Algorithm",
        text="Factor by which rewards are multiplied, before reward_clipping. Values and losses "
             "are then in this unit; mean returns are still sums of raw rewards.")
    reward_clipping: str = flag(
        "auto", group="Algorithm", choices=("auto", "abs_one", "soft_asymmetric", "none"),
        of_games=True,
        text="How a reward r is changed before the network reads it and the loss uses it. "
             "abs_one: clipped to [-1, 1]. soft_asymmetric: 5 tanh(r/5), multiplied by 0.3 if r "
             "is negative. none: not changed. auto: what the run in logdir has recorded; for a "
             "new run abs_one for Atari and none for all other levels.")
    normalize_observations: bool = flag(
        False, group="Algorithm", auto=True, with_box=True, kept_by="weights",
        text="Normalise observations by their running mean and standard deviation, which all "
             "learners share, and clip them to [-10, 10]. Images and integers stay as they are. "
             "auto: what the run in logdir has recorded; for a new run, true if an action "
             "contains numbers (Box).")
    subtract_mean_image: bool = flag(
        False, group="Algorithm", auto=True, of_games=True, kept_by="weights",
        text="Read images of bytes as their differences from the mean of all images that the "
             "learners have trained on, so that the network sees what moves. It suits games with a "
             "still background, such as Breakout. auto: what the run in logdir has recorded; for a "
             "new run true for Atari, unless it begins with offline_updates or its replay has no "
             "queue.")
    normalize_rewards: bool = flag(
        False, group="Algorithm", auto=True, with_box=True, kept_by="weights",
        text="Divide rewards by the running standard deviation of the discounted returns of all "
             "episodes and clip them to [-10, 10], before reward_clipping. Values and losses are "
             "then in this unit; mean returns are still sums of raw rewards. auto: as for "
             "normalize_observations.")
    entropy_cost: float = flag(
        0.005, group="Algorithm", auto=True, with_box=0.0,
        short="weight of the policy's entropy in the loss",
        text="Weight of the policy's entropy in the loss. A larger weight makes the policy "
             "explore more. auto: what the run in logdir has recorded; for a new run, 0 if an "
             "action contains numbers (Box), whose entropy has no upper limit, otherwise 0.005.")
    box_policy: str = flag(
        "clipped", group="Algorithm", choices=("auto", "clipped", "tanh", "normal", "noisy"),
        with_box="normal",
        text="Distribution of actions from a Box with bounds. normal: a normal distribution, whose "
             "actions are clipped to the bounds only for the environment. clipped: a normal "
             "distribution whose numbers beyond a bound count as the bound; a policy far beyond it "
             "no longer learns. tanh: the hyperbolic tangent of a normal distribution, rescaled to "
             "the bounds; a Box that lacks a bound is treated as with clipped. noisy, as of TD3: "
             "the hyperbolic tangent of the mean, and clipped noise of a fixed deviation. auto: "
             "what the run in logdir has recorded, and normal for a new run.")
    box_deviation: str = flag(
        "shared", group="Algorithm", choices=("shared", "learnt"),
        text="Standard deviation of actions from a Box. shared: trained, and the same for all "
             "observations. learnt: computed by the network from each observation.")
    advantage_scaling: str = flag(
        "auto", group="Algorithm", choices=("auto", "batch", "none"),
        text="How advantages are scaled before they weight the policy's gradient. batch: minus "
             "their mean over the batches of all learners, and divided by their standard "
             "deviation, which keeps a policy of numbers from collapsing while the baseline is "
             "still wrong. auto: batch, but none for Discrete actions.")
    baseline_cost: float = flag(
        0.5, group="Algorithm",
        text="Weight of the baseline's squared error in the loss; value_normalization names the "
             "unit of the error.")
    value_normalization: str = flag(
        "error", group="Algorithm", choices=("error", "popart", "none"), kept_by="run",
        text="Unit in which the baseline learns. error: the reward's, and its squared error is "
             "divided by the error's own running mean where that is above 1. popart: PopArt; the "
             "value targets' own mean and standard deviation, those of the newest 50,000 steps of "
             "all learners, by which advantages are divided, too; each of several levels has its "
             "own. It suits rewards of any size, also unknown or changing ones. none: the "
             "reward's.")
    huber_delta: float = flag(
        float("inf"), group="Algorithm", least=1e-6,
        text="Error of the baseline, in the unit of value_normalization, or of the values of dqn, "
             "r2d2 and pqn, beyond which it counts linearly instead of squared (Huber's loss). "
             "inf: never.")
    loss_reduction: str = flag(
        "sum", group="Algorithm", choices=("sum", "mean"),
        text="How the losses of the steps in a learner's batch are combined. sum: added up, the "
             "scale that IMPALA's published settings assume. mean: the sum divided by "
             "unroll_length x batch_size.")

    # -- Network
    agent_name: str = flag(
        "auto", group="Network",
        short="network: sandbox/networks.md",
        text="Name of the network (sandbox/networks.md). auto: a small network that suits "
             "the shape of the observation: ShallowConvAgent for images of at least 36x36 "
             "pixels, SmallConvAgent for images of at least 5x5, otherwise MLPAgent.")
    precision: str = flag(
        "auto", group="Network", choices=("auto", "float32", "bfloat16"),
        short="precision of the network: float32, bfloat16, auto",
        text="Numeric precision of the network's torso; variables, recurrent core, heads and "
             "loss are always float32. bfloat16 is faster on processors that compute in it "
             "(NVIDIA A100 and later; CPUs with avx512_bf16 or amx_bf16) and slower on others, "
             "where actors use float32 whatever this flag says. auto: bfloat16 for images of at "
             "least 1,000 numbers on such a processor, otherwise float32.")
    mlp_sizes: str = flag(
        "64,64", group="Network", parse=whole_numbers, kept_by="weights",
        text="Units of each layer of the network's MLP, separated by commas, the first layer "
             "first.")
    activation: str = flag(
        "tanh", group="Network", choices=("tanh", "relu", "elu", "gelu", "swish"),
        kept_by="weights",
        text="Function after each layer of the network's MLP. Convolutions have a ReLU.")
    layer_norm: bool = flag(
        False, group="Network", kept_by="weights",
        text="Normalise the outputs of each layer of the network's MLP, and of its convolutions "
             "unless they are a ResNet's, before the activation.")
    lstm_size: int = flag(
        0, group="Network", least=0, kept_by="weights",
        text="Units of the network's LSTM or GRU, or of each layer of its GTrXL. 0: the network's "
             "own number (MLPs: 64, SimpleConvNet: 512, others: 256; GTrXL of images: 128).")
    gtrxl_layers: int = flag(
        2, group="Network", least=1, kept_by="weights",
        text="Layers of the network's GTrXL, a transformer that remembers the episode.")
    gtrxl_heads: int = flag(
        4, group="Network", least=1, kept_by="weights",
        text="Heads of attention in each layer of the network's GTrXL; they divide its units.")
    gtrxl_memory: int = flag(
        32, group="Network", least=1, kept_by="weights",
        text="Entries before an entry that the network's GTrXL attends to. Each unroll carries "
             "4 x gtrxl_memory x (gtrxl_layers x units + 1) bytes of them.")
    conv_factor: float = flag(
        1.0, group="Network", least=0.01, most=100, kept_by="weights",
        text="Factor of the channels of each of the network's convolutions: 2 or 4 for the wide "
             "ResNets of Cleanba, BBF and others, 0.5 for half of the channels.")
    conv_units: int = flag(
        -1, group="Network", kept_by="weights",
        text="Units of the fully connected layer after the network's convolutions. 0: there is no "
             "such layer, and the heads or the core read the convolutions. Negative: the network's "
             "own number (SimpleConvNet: 512, SmallConv and Board: 128, others: 256).")
    separate_networks: bool = flag(
        False, group="Network", auto=True, with_box=True, kept_by="weights",
        text="Give the policy and the value function a network each. False: both read the "
             "features of one network. auto: what the run in logdir has recorded; for a new run, "
             "true if an action contains numbers (Box) and an observation holds fewer than 1,000.")
    mlp_init_scale: float = flag(
        0.0, group="Network", least=0,
        text="Scale of the initial weights of the network's MLP, which are then orthogonal; "
             "1.4 suits relu. 0: random numbers whose deviation is 1 / sqrt(inputs).")
    policy_init_scale: float = flag(
        0.01, group="Network", least=0,
        text="Scale of the initial weights of the policy's last layer. The smaller it is, the "
             "more even the first policy is.")

    # -- Optimizer
    optimizer: str = flag(
        "adam", group="Optimizer", choices=("adam", "radam", "rmsprop"), kept_by="run",
        text="Optimizer. radam is Adam with smaller first steps, which PQN's published settings "
             "assume. rmsprop is the RMSProp of TensorFlow 1 (epsilon inside the root), which "
             "IMPALA's assume.")
    learning_rate: float = flag(
        0.0008, group="Optimizer", least=0,
        short="learning rate at the start",
        text="Learning rate at the start of the run; learning_rate_schedule says how it changes.")
    learning_rate_schedule: str = flag(
        "linear", group="Optimizer", choices=("linear", "constant", "polynomial"),
        only_with=without_flag("learning_rate_kl"),
        text="How the learning rate changes over total_environment_frames. linear: in a straight "
             "line from learning_rate to learning_rate_end. polynomial: the same, but the "
             "difference from learning_rate_end is multiplied by the remaining share of the frames "
             "to the power of learning_rate_power. constant: not at all.")
    learning_rate_end: float = flag(
        0.0, group="Optimizer", least=0,
        only_with=with_flag("learning_rate_schedule", "linear", "polynomial"),
        text="Learning rate at the end of the run, unless learning_rate_schedule is constant.")
    learning_rate_power: float = flag(
        2.0, group="Optimizer", least=0,
        only_with=with_flag("learning_rate_schedule", "polynomial"),
        text="Exponent of learning_rate_schedule=polynomial; 1 is linear, and larger values "
             "lower the rate earlier.")
    decay: float = flag(
        0.99, group="Optimizer", least=0, most=1, only_with=with_flag("optimizer", "rmsprop"),
        text="rmsprop only: share of the mean square that is kept at each update.")
    momentum: float = flag(
        0.0, group="Optimizer", least=0, most=1, only_with=with_flag("optimizer", "rmsprop"),
        text="rmsprop only: share of the previous step that is added to the next one.")
    epsilon: float = flag(
        -1, group="Optimizer",
        text="Small number against division by 0: added to the mean square under the root "
             "(rmsprop) or to the root (adam, radam). Negative: 0.01 for rmsprop, 1e-5 for the "
             "others.")
    gradients_clipping: float = flag(
        -1.0, group="Optimizer", infinite=True, by_run=True,
        short="largest gradient, by norm or value; negative: no clipping",
        text="Largest gradient, as gradients_clipping_mode measures it, after gradients are "
             "averaged over the learners; a larger one is scaled or cut down. Negative: no "
             "clipping.")
    gradients_clipping_mode: str = flag(
        "global_norm", group="Optimizer", choices=("global_norm", "variable_norm", "value"),
        by_run=True, only_with=_CLIPPED,
        text="What gradients_clipping limits. global_norm: the norm of all gradients together. "
             "variable_norm: the norm of each variable's gradient. value: the absolute value of "
             "every number.")

    # -- Learners
    allreduce: str = flag(
        "each", group="Learners", choices=("each", "grouped"),
        text="How gradients are averaged over the learners. each: one all-reduce per variable, "
             "as soon as its gradient is computed, so that it overlaps with the rest of the "
             "backward pass; the larger the network, the more this helps. grouped: one "
             "all-reduce of all gradients at the end; use it where many messages take too long.")
    gradient_dtype: str = flag(
        "float32", group="Learners", choices=("float32", "float16"),
        text="Data type in which gradients are sent between learners. float16 halves their size "
             "and rounds them; use it where learners wait for the network between hosts.")
    fusion_mb: float = flag(
        64, group="Learners", least=0, only_with=with_flag("allreduce", "each"),
        text="Size of Horovod's fusion buffer in MiB. Gradients that are ready at the same time "
             "are sent together, up to this size. It matters with allreduce=each.")
    cycle_ms: float = flag(
        1, group="Learners", least=0.1,
        text="Milliseconds between two of Horovod's checks for gradients that are ready on all "
             "learners. A larger value uses less CPU while a learner waits; a smaller one starts "
             "the all-reduce sooner.")
    check_sync_every: int = flag(
        1000, group="Learners", least=0,
        text="Updates between two checks that all learners hold the same variables, bit for bit. "
             "A difference of up to 1e-4 of a variable's largest value is repaired and counted; "
             "a larger one ends the run. 0: no checks.")

    # -- Rehearsal
    updates: int = flag(
        200, group="Rehearsal", least=1, needs=in_mode("rehearsal"),
        text="Number of updates in a rehearsal.")

    # -- Replay
    replay: str = flag(
        "", group="Replay", rewrite=replay_mix.rewrite,
        short="old unrolls in each batch: queue:0.5,uniform:0.5:10000",
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
