"""Every setting of an experiment. A flag is a field here, and nowhere else."""

import dataclasses
from typing import ClassVar

from impala_mm.config.flags import AUTO, OldName, flag


@dataclasses.dataclass(frozen=True)
class Config:
    """What one process is told; equal on all learners but for what names the process itself."""

    # As the family's users know them: accepted, and said to be old.
    OLD_NAMES: ClassVar = {
        "learner_host": OldName("learner_hosts"),
        "actor_hosts": OldName(None, "actors listen nowhere, they dial their learner"),
    }

    # fmt: off
    # -- Run
    level_name: str = flag(
        "CartPole-v1", group="Run",
        text="Environment: a gymnasium or gym id, catch, memory, or my_package:MyEnv-v0. Several, "
             "separated by commas, are played by the actors in turn; one network learns all.")
    logdir: str = flag(
        "", group="Run", own=True,
        text="Folder of the run: settings, metrics, checkpoints. A folder given by name is resumed "
             "if it holds a run; unset, a new one is made: runs/<level>-<algorithm>-<time>.")
    mode: str = flag(
        "train", group="Run", choices=("train", "train_from", "test", "export", "rehearsal"),
        text="train; train_from: a new run, from the weights of --checkpoint; test: plays whole "
             "games with what --logdir has learnt, and says how well; export: writes that as a "
             "SavedModel; rehearsal: a tiny network learns generated data through the all-reduce "
             "of a real run, and all learners compare their variables. It checks a new cluster.")
    validate: bool = flag(
        False, group="Run", own=True,
        text="Check the flags, start nothing, and end: with code 0 and a line about what they "
             "mean, or with 2 and a sentence about what is wrong.")
    checkpoint: str = flag(
        "", group="Run", own=True,
        text="A run's folder, whose newest checkpoint is meant, or the folder of one checkpoint: "
             "whose weights train_from starts with; with test and export, instead of the newest.")
    seed: int = flag(
        1, group="Run", least=0,
        text="Seed of initial weights, actions and environments; each process derives its own.")
    total_environment_frames: float = flag(
        0, group="Run", least=0,
        text="Environment frames (steps x action repeats) of all learners after which the run "
             "ends; the learning rate falls to 0 over them. 0: 50 million, or earlier, when the "
             "level's own reward threshold is reached.")
    stop_at_return: float = flag(
        float("inf"), group="Run",
        text="Mean raw return over 100 whole games at which the run ends. inf: the level's own "
             "reward threshold if it is one level and total_environment_frames is not given, else "
             "never.")
    max_seconds: float = flag(
        float("inf"), group="Run", least=0,
        text="Seconds of training after which the run ends.")
    save_checkpoint_secs: float = flag(
        60, group="Run", least=0,
        text="Seconds between checkpoints. They hold all that a run needs to go on.")
    keep_checkpoints: int = flag(
        3, group="Run", least=1, own=True,
        text="Newest checkpoints that are kept; that of the best mean return and one for each "
             "tenth of total_environment_frames are kept besides.")
    log_max_mb: float = flag(
        20, group="Run", least=0.1, own=True,
        text="MiB of a process's log in the run's folder, after which it begins anew; the one "
             "before is kept as LOG.1.")
    on_event: str = flag(
        "", group="Run", own=True,
        text="Command that rank 0 calls, without waiting for it, when a checkpoint is saved, when "
             "nothing is learnt for a minute, at a gradient that is not finite and at the end; "
             "IMPALA_MM_EVENT (save, stall, nan, end), IMPALA_MM_LOGDIR and IMPALA_MM_MESSAGE are "
             "in its environment.")
    profile: str = flag(
        "", group="Run", own=True,
        text="START:STOP: a TensorBoard trace of rank 0's updates from START to STOP, counted from "
             "this process's start.")
    track: bool = flag(
        False, group="Run", own=True,
        text="Log to Weights & Biases, too, where wandb is installed; WANDB_MODE=offline needs no "
             "account.")

    # -- Test
    test_num_episodes: int = flag(
        10, group="Test", least=1, own=True,
        text="Whole games that --mode=test and an evaluator play of each level.")
    test_levels: str = flag(
        "", group="Test", own=True,
        text="Levels that --mode=test plays one after the other, separated by commas, or a suite "
             "by name: atari57. Unset: level_name if given, else the run's own.")
    deterministic: bool = flag(
        False, group="Test", own=True,
        text="Play the most likely action each time; unset: as in training, drawn from the policy.")
    render: bool = flag(
        False, group="Test", own=True,
        text="Show the first environment in a window, where there is a display.")
    video_dir: str = flag(
        "", group="Test", own=True,
        text="Folder for a video (mp4) of the first game of each level.")
    video_overlay: bool = flag(
        False, group="Test", own=True,
        text="Write action, value estimate and return into the video's picture.")
    export_dir: str = flag(
        "", group="Test", own=True,
        text="Folder that --mode=export writes. Unset: export/ in the run's folder.")

    # -- Processes
    job_name: str = flag(
        "", group="Processes", choices=("", "learner", "actor", "evaluator"), own=True,
        text="Role of this process. Unset: num_learners learners and num_actors actors on this "
             "machine. An evaluator follows the checkpoints of the run in --logdir and tests each "
             "new one.")
    task: int = flag(
        0, group="Processes", least=0, own=True,
        text="Number of an actor; no two of a run may share one.")
    learner: int = flag(
        -1, group="Processes", least=-1, own=True,
        text="Number of the learner that an actor begins with, of learner_hosts; and stays with, "
             "under learner_assignment=fixed. -1: learners are taken in turn, by task.")
    learner_hosts: str = flag(
        "localhost:8001", group="Processes", own=True,
        text="host:port where actors reach the learner; of several learners, separated by commas. "
             "A learner started by mpirun takes the one of its rank, or, given only one, that one.")
    bind_address: str = flag(
        "", group="Processes", own=True,
        text="host:port on which the learner listens, where that is not what actors dial.")
    num_learners: int = flag(
        1, group="Processes", least=1, own=True,
        text="Learners that a process without job_name starts, under an mpirun of its own.")
    num_actors: int = flag(
        2, group="Processes", least=0, own=True, auto=True,
        text="Actors that a process without job_name starts. auto: one for each core.")
    learner_assignment: str = flag(
        "balance", group="Processes", choices=("balance", "fixed"),
        text="Which learner an actor feeds. It begins with that of --learner; balance: a learner "
             "with a full queue sends one to the learner that waits longest, at most one in 5 s, "
             "and a learner that is away is left; fixed: it stays, as all do whose learner infers.")
    inference: str = flag(
        "actor", group="Processes", choices=("actor", "learner", "auto"),
        text="Where actions are chosen. actor: each actor has the network, and pulls newer "
             "parameters. learner: actors only step environments and send what they see; the "
             "learner chooses for all of them together. auto: at the learner if it has a GPU and "
             "the network is worth it; actors ask their learner.")
    num_envs: int = flag(
        16, group="Processes", least=1, own=True, auto=True,
        text="Environments per actor; their observations go through the network as one batch. "
             "auto: 32 of those that show images, else 16.")
    env_groups: int = flag(
        AUTO, group="Processes", least=1, own=True, auto=True,
        text="Groups of an actor's environments that take turns: while the network reads what one "
             "shows, the others step, each in a thread. auto: 2 where a process without job_name "
             "starts fewer actors than there are cores, and images are played, else 1. With "
             "--inference=learner they are always 2.")
    token_file: str = flag(
        "", group="Processes", own=True,
        text="File of the secret that actors show to learners. Unset: one of this user's own, made "
             "when first needed.")
    device: str = flag(
        "auto", group="Processes", choices=("auto", "cpu", "gpu"), own=True,
        text="Where a learner trains. auto: on a GPU that CUDA_VISIBLE_DEVICES shows, each learner "
             "of a host on its own; else on the CPU.")
    actor_device: str = flag(
        "cpu", group="Processes", choices=("cpu", "gpu"), own=True,
        text="Where an actor's network runs. gpu: of those that CUDA_VISIBLE_DEVICES shows, that "
             "of its task's number.")
    intra_op_threads: int = flag(
        0, group="Processes", least=0, own=True,
        text="TensorFlow's threads within an operation. 0: a learner's share of the host's cores, "
             "1 in an actor or evaluator. Where neither this nor inter_op_threads is given: 1 in a "
             "learner of small observations without GPU, xla or algorithm of your own, too.")
    inter_op_threads: int = flag(
        0, group="Processes", least=0, own=True,
        text="TensorFlow's threads across operations. 0: 1, but 2 in a learner, unless it is such "
             "a one of small observations.")

    # -- Data
    batch_size: int = flag(
        8, group="Data", least=1,
        text="Unrolls per learner and update.")
    unroll_length: int = flag(
        20, group="Data", least=1,
        text="Steps per unroll.")
    queue_capacity: int = flag(
        0, group="Data", least=0, own=True,
        text="Unrolls that wait in a learner before actors are held back. 0: batch_size.")
    min_pull_secs: float = flag(
        -1, group="Data",
        text="Seconds between a host's pulls of parameters, one for all its actors. Negative: as "
             "many as keep a host's pulls under 10% of a 1 Gbit/s link.")
    parameter_dtype: str = flag(
        "float32", group="Data", choices=("float32", "float16"),
        text="Type of trained weights on the wire to the actors.")
    compression: str = flag(
        "auto", group="Data", choices=("auto", "none", "lz4"), own=True,
        text="Of what an actor sends: unrolls, or with inference=learner observations. Learners "
             "take either, so actors may differ. auto: lz4 for images of uint8, else none.")

    # -- Environment
    num_action_repeats: int = flag(
        0, group="Environment", least=0,
        text="Environment frames per step. 0: the environment's own (Atari: 4).")
    width: int = flag(
        0, group="Environment", least=0,
        text="Pixels across, to which images are resized. 0: as they come (Atari: 84).")
    height: int = flag(
        0, group="Environment", least=0,
        text="Pixels down, to which images are resized. 0: as they come (Atari: 84).")
    sticky_actions: float = flag(
        -1, group="Environment", most=1,
        text="Atari: probability, at each frame, that the emulator repeats the action before "
             "instead. Negative: the id's own (0.25 for v0 and v5, 0 for v4).")
    no_reward_steps: int = flag(
        0, group="Environment", least=0,
        text="Atari: steps in a row without reward after which a game is cut and begins anew. "
             "0: never.")
    full_action_space: bool = flag(
        False, group="Environment",
        text="Atari: all 18 actions, not only those that do something in the game.")
    fire_after_life_loss: bool = flag(
        False, group="Environment",
        text="Atari: press FIRE for the agent in the step after each lost life, whatever it chose; "
             "what is recorded and learnt from is its own choice.")

    # -- Algorithm
    algorithm: str = flag(
        "impala", group="Algorithm",
        text="impala, or a module of yours (package.module); see impala_mm/algorithms/.")
    agent_name: str = flag(
        "auto", group="Algorithm",
        text="Network, by name (nets/). auto: chosen by the shape of the observation alone.")
    precision: str = flag(
        "auto", group="Algorithm", choices=("auto", "float32", "bfloat16"),
        text="In which the network reads observations. Its weights, memory and heads, and the "
             "loss, are float32 in any. bfloat16 is faster on processors that compute in it "
             "(NVIDIA A100 and later; CPUs with avx512_bf16 or amx_bf16) and slower on others: "
             "there actors, and with auto learners too, keep to float32. auto: of large pictures "
             "only.")
    xla: bool = flag(
        False, group="Algorithm",
        text="Forward and backward pass compiled by XLA, at the first update. Meant for GPUs; on a "
             "CPU convolutions took 1.3 to 1.4 times as long so, an LSTM 0.6. All gradients are "
             "then there at once, which leaves allreduce=each nothing to overlap.")
    discounting: float = flag(
        0.99, group="Algorithm", least=0, most=1,
        text="Discount of a reward per step that it lies ahead.")
    reward_clipping: str = flag(
        "abs_one", group="Algorithm", choices=("abs_one", "soft_asymmetric", "none"),
        text="What is learnt from a reward r: abs_one: r cut to [-1, 1]; soft_asymmetric: "
             "5 tanh(r/5), the negative side times 0.3; none: r.")
    entropy_cost: float = flag(
        0.005, group="Algorithm",
        text="Weight of the policy's entropy in the loss: more explores more.")
    baseline_cost: float = flag(
        0.5, group="Algorithm",
        text="Weight of the baseline's squared error in the loss; the error is divided by its "
             "running mean where that is above 1.")
    loss_reduction: str = flag(
        "sum", group="Algorithm", choices=("sum", "mean"),
        text="Over the steps of a learner's batch. sum is the scale of IMPALA's published "
             "settings; mean divides by unroll_length x batch_size.")
    clip_rho_threshold: float = flag(
        1.0, group="Algorithm", least=0,
        text="V-trace's rho-bar: where the value function converges to.")
    clip_c_threshold: float = flag(
        1.0, group="Algorithm", least=0,
        text="V-trace's c-bar: how fast.")
    clip_pg_rho_threshold: float = flag(
        1.0, group="Algorithm", least=0,
        text="Largest importance weight of the policy gradient.")
    vtrace_lambda: float = flag(
        0.9, group="Algorithm", least=0, most=1,
        text="V-trace's lambda: below 1, targets lean on the value function earlier and vary less; "
             "IMPALA's published settings assume 1.")

    # -- Optimizer
    optimizer: str = flag(
        "adam", group="Optimizer", choices=("adam", "rmsprop"),
        text="rmsprop is TensorFlow 1's (epsilon inside the root), as IMPALA's settings assume.")
    learning_rate: float = flag(
        0.0008, group="Optimizer", least=0,
        text="Step size at the start; falls linearly to 0 over total_environment_frames.")
    decay: float = flag(
        0.99, group="Optimizer", least=0, most=1,
        text="RMSProp: share of the old mean square kept at each update.")
    momentum: float = flag(
        0.0, group="Optimizer", least=0, most=1,
        text="RMSProp: share of the last step added to the next.")
    epsilon: float = flag(
        -1, group="Optimizer",
        text="Added to the mean square, under the root (RMSProp), or to the root (Adam). Negative: "
             "0.01 for RMSProp, 1e-5 for Adam.")
    gradients_clipping: float = flag(
        -1.0, group="Optimizer",
        text="Limit on the gradient, after it is averaged over learners. Negative: off.")
    gradients_clipping_mode: str = flag(
        "global_norm", group="Optimizer", choices=("global_norm", "variable_norm", "value"),
        text="What gradients_clipping limits: the norm of the whole, of each variable's, or each "
             "number.")

    # -- Learners
    allreduce: str = flag(
        "each", group="Learners", choices=("each", "grouped"),
        text="How gradients are averaged. each: as soon as they are there, the first while the "
             "backward pass still computes the last: the larger the network, the more it helps. "
             "grouped: all in one message, where each costs too many.")
    gradient_dtype: str = flag(
        "float32", group="Learners", choices=("float32", "float16"),
        text="Type of gradients on the wire between learners. float16 halves them, rounded; worth "
             "it where the network between hosts is what learners wait for.")
    fusion_mb: float = flag(
        64, group="Learners", least=0,
        text="Horovod's fusion buffer, in MiB: gradients that are ready together, up to so much, "
             "travel together. Matters to allreduce=each.")
    cycle_ms: float = flag(
        1, group="Learners", least=0.1,
        text="Milliseconds between Horovod's looks for gradients that are ready on all learners. "
             "More spares a waiting learner's CPU, less answers sooner.")
    check_sync_every: int = flag(
        1000, group="Learners", least=0,
        text="Updates between two checks that all learners hold the same variables, bit for bit. A "
             "difference below 1e-4 of a variable's largest value is repaired and counted, a "
             "greater one ends the run. 0: never.")

    # -- Rehearsal
    updates: int = flag(
        200, group="Rehearsal", least=1,
        text="Updates of a rehearsal.")
    # fmt: on
