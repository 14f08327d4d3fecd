"""The flags of a run and of its processes, of any algorithm: what to do, where, how long."""

import dataclasses

from impala_mm.config import setting_files
from impala_mm.config.flags import AUTO, flag, in_mode, with_flag

_MODES = ("train", "train_from", "reincarnate", "test", "record", "export", "rehearsal")

_REINCARNATE = " and ".join(f"{n}={value}" for n, value in setting_files.REINCARNATE.items())
_FROM_CHECKPOINT = dataclasses.replace(
    in_mode("train_from"), words="--mode=train_from --checkpoint=FOLDER, the run that it is of"
)
_ACTORS_CHOOSE = with_flag("inference", "actor", "auto")


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The settings of a run, of tests, and of processes."""

    # fmt: off
    # -- Run
    level_name: str = flag(
        "CartPole-v1", group="Run",
        short="environment: PongNoFrameskip-v4, my_package:MyEnv-v0",
        text="Environment to train on: the id of a gymnasium or classic gym environment, catch, "
             "memory, tmaze, or my_package:MyEnv-v0, for which my_package is imported; or "
             "my_package:make_env, a function or class that makes the environment. Several, "
             "separated by commas, or the name of a suite of levels (dmlab, procgen16), train one "
             "network on all of them; the actors take them in turn.")
    preset: str = flag(
        "", group="Run", own=True, choices=("", *setting_files.preset_names()), several=True,
        scope="start",
        short="settings of this package: atari-ppo, mujoco-sac, rainbow, ...",
        text="Settings that come with this package; the files of impala_mm/presets/ show them. "
             "Of several, separated by commas (rainbow,atari-sticky), the last takes precedence. "
             "Other flags, given here or in the file of config, do so before any.")
    config: str = flag(
        "", group="Run", own=True, scope="command",
        short="file of settings in TOML, or a run's settings.json",
        text="File of settings: TOML, with lines such as batch_size = 64, or a run's "
             "settings.json. Flags on the command line take precedence. A settings.json does not "
             "set what belongs to a process or a machine: roles, numbers of learners and actors, "
             "addresses, folders, limits of disk.")
    imports: str = flag(
        "", group="Run",
        text="Modules of yours that every process imports before anything else, separated by "
             "commas: they may add networks, kinds of replay and other things by name, and "
             "register environments. --import is another name of this flag.")
    show_config: bool = flag(
        False, group="Run", own=True, scope="command",
        text="Print all settings as a file for config, with where each one came from, and exit.")
    origins: str = flag(
        "", group="Run", own=True, scope="command",
        text="Which settings came from a preset or file. The program that reads these sets it for "
             "the processes that it starts; settings.json records it.")
    logdir: str = flag(
        "", group="Run", own=True, scope="process",
        short="folder of the run; a run that it holds is resumed",
        text="Folder of the run: settings, metrics, checkpoints and logs. If it holds a run, that "
             "run is resumed. Unset: a new folder, runs/<level>-<algorithm>-<time>.")
    mirror: str = flag(
        "", group="Run", own=True, scope="process",
        short="copy of that folder in object storage, such as s3://bucket/run",
        text="Copy of the run's folder: a folder of its own on any file system that the package "
             "fsspec reads, such as s3://bucket/run, which needs the package s3fs. Learner 0 "
             "writes to it every 20 s. A start whose logdir has an older state of the run, or "
             "nothing, downloads it first. (mirror_logdir copies from hosts to the frontend.)")
    mode: str = flag(
        "train", group="Run", choices=_MODES, scope="start",
        short="train, train_from, reincarnate, test, record, export, ...",
        text="What to do. train: train a policy, or resume the run in --logdir. train_from: "
             "start a new run from the weights of --checkpoint. reincarnate: train a student of "
             f"teacher in all phases, with {_REINCARNATE} unless these are given. test: play "
             "complete games with the newest checkpoint in --logdir and print the returns. "
             "export: write that checkpoint's policy as a SavedModel or in another format "
             "(export_format). record: let that policy "
             "play complete games, and write them as a data set, from which students learn "
             "(teacher_data). rehearsal: train a tiny network on generated data through the "
             "all-reduce of a real run and compare the variables of all learners, which checks a "
             "new cluster.")
    quick: bool = flag(
        False, group="Run", own=True, needs=in_mode("reincarnate"),
        text="With --mode=reincarnate: make all phases so short that they take about a minute, to "
             "see whether everything works. Flags on the command line take precedence.")
    validate: bool = flag(
        False, group="Run", own=True, scope="process",
        text="Check the flags without starting anything. The exit code is 0 if they are valid, "
             "and a line says what they mean; it is 2 if they are not, and an error says why.")
    debug: bool = flag(
        False, group="Run", own=True, scope="process",
        text="Train in this one process and compute everything eagerly, with few environments: "
             "breakpoint() and print show values in an algorithm and in an environment. It is "
             "slow.")
    check_env_secs: float = flag(
        20, group="Run", infinite=True, least=0, own=True,
        text="Maximum time in seconds for which validate plays the environments of level_name, in "
             "a process of its own, to find errors: resets and 100 random steps each. Before a "
             "training, the same check takes at most 2 s. 0: no check.")
    checkpoint: str = flag(
        "", group="Run", own=True, scope="process",
        short="the weights that train_from, test, record and export read",
        text="Folder of one checkpoint, or of a run, whose newest checkpoint is then used, or the "
             "name of a policy that comes with this package (sandbox/policies.md). train_from "
             "starts from its weights; test, record and export read it instead of the newest one "
             "in --logdir. --policy is another name of this flag.")
    reload_optimizer: bool = flag(
        False, group="Run", learner_only=True, needs=_FROM_CHECKPOINT,
        text="With mode=train_from, also restore the optimizer's state and all other training "
             "state except schedules.")
    reload_replay: bool = flag(
        False, group="Run", learner_only=True, needs=_FROM_CHECKPOINT,
        text="With mode=train_from and replay_save, begin with the replay that the run of "
             "--checkpoint has saved: each learner with its own, or a share of all.")
    seed: int = flag(
        1, group="Run", least=0,
        short="seed of weights, actions and environments",
        text="Seed of the initial weights, the actions and the environments. Each process "
             "derives its own seed from it.")
    deterministic_run: bool = flag(
        False, group="Run",
        text="Let the same flags and seed give the same weights, bit for bit, on the same machine "
             "with the same versions: the actor waits while the learner trains, and the learner "
             "while the actor plays. It takes one learner and one actor, with "
             "inference=actor, and is slower.")
    total_environment_frames: float = flag(
        0, group="Run", infinite=True, least=0,
        short="frames after which the run ends; 0: 50 million",
        text="Environment frames, summed over all learners, after which the run ends; each step of "
             "an agent counts num_action_repeats frames. The learning rate falls over them. "
             "0: 50 million; the run then ends earlier if it reaches the level's reward "
             "threshold (see stop_at_return).")
    stop_at_return: float = flag(
        float("inf"), group="Run",
        short="mean return over 100 games at which it ends",
        text="Mean return (sum of raw rewards) over 100 complete games at which the run ends. inf: "
             "the level's own reward threshold if there is one level and "
             "total_environment_frames is 0, otherwise never.")
    max_seconds: float = flag(
        float("inf"), group="Run", least=0,
        short="seconds after which it ends",
        text="Seconds after which the run ends, counted from the first unroll that a learner has "
             "received, or from the first offline update, as the metric `seconds` is; a resumed "
             "run also counts those of its earlier starts. inf: never.")
    save_checkpoint_secs: float = flag(
        60, group="Run", infinite=True, least=0,
        short="seconds between checkpoints",
        text="Seconds between checkpoints. A checkpoint holds everything that is needed to "
             "resume the run.")
    keep_checkpoints: int = flag(
        3, group="Run", least=1, own=True,
        text="Number of newest checkpoints to keep. The checkpoint with the best mean return and "
             "one for each tenth of total_environment_frames are kept as well.")
    checkpoint_max_gb: float = flag(
        20, group="Run", infinite=True, least=0, own=True,
        text="Maximum size in GB of all checkpoints of a run together, without what replay_save "
             "saves. Beyond it, the oldest ones are deleted, those for each tenth of the run "
             "first; the newest and the best one are always kept.")
    log_max_mb: float = flag(
        20, group="Run", infinite=True, least=0.1, own=True,
        text="Largest size in MiB of each process's log in the run's folder. A log that reaches "
             "it is renamed to LOG.1, which replaces an earlier LOG.1, and a new log is started.")
    log_games: bool = flag(
        False, group="Run", own=True,
        text="Write a line for each complete game to games.jsonl in the run's folder: its return, "
             "length, level, actor, environment and policy. The file grows by some 150 bytes a "
             "game and is never cut; it is written every 2 s, by rank 0 for all learners.")
    on_event: str = flag(
        "", group="Run", own=True,
        text="Shell command that rank 0 runs, without waiting for it, at each of four events: a "
             "checkpoint was saved (save), no update happened for a minute (stall), a gradient "
             "was not finite (nan), the run ended (end). The environment variable "
             "IMPALA_MM_EVENT holds the event's name; IMPALA_MM_LOGDIR and IMPALA_MM_MESSAGE are "
             "set, too. Unset: nothing is run.")
    profile: str = flag(
        "", group="Run", own=True,
        text="START:STOP, such as 100:120: record a TensorBoard trace of rank 0's updates from "
             "update START up to, but not including, STOP; update 0 is the first one of this "
             "process. Unset: no trace.")
    track: str = flag(
        "", group="Run", own=True, bare="wandb",
        text="Send rows, settings and files to a tracker as well: without a value to Weights & "
             "Biases, which needs the package wandb and an account (none with WANDB_MODE=offline "
             "in the environment); to trackio or mlflow, whose packages set-up does not install "
             "either; or to a class of yours, given as my_package.MyTracker.")
    track_tags: str = flag(
        "", group="Run", own=True, only_with=with_flag("track"),
        text="Tags of the run for its tracker, separated by commas.")

    # -- Dashboard
    dashboard: bool = flag(
        False, group="Dashboard", own=True,
        short="show runs on a page in the browser",
        text="Show runs on a page in the browser, and start nothing: those of this user's "
             "frontends on this machine, those in the foreground of terminals, and those in the "
             "folder logdir (unset: runs). It prints the page's address.")
    dashboard_port: int = flag(
        0, group="Dashboard", least=0, most=65535, own=True, only_with=with_flag("dashboard"),
        text="Port of the dashboard at this machine's loopback address. 0: the first free one from "
             "8600 up.")
    dashboard_token_file: str = flag(
        "", group="Dashboard", own=True, only_with=with_flag("dashboard"),
        text="File with the token of the dashboard's address; it is created if it does not exist. "
             "Unset: each start has a new token.")
    dashboard_control: bool = flag(
        False, group="Dashboard", own=True, only_with=with_flag("dashboard"),
        text="Let the dashboard's page also save and stop runs, and apply a changed CSV. Unset: "
             "it only reads.")

    # -- Test
    test_num_episodes: int = flag(
        10, group="Test", least=1, own=True, needs=in_mode("test", evaluator=True),
        short="games of --mode=test and of an evaluator",
        text="Number of complete games that --mode=test and an evaluator play on each level.")
    test_levels: str = flag(
        "", group="Test", own=True, needs=in_mode("test", evaluator=True),
        text="Levels that --mode=test or an evaluator plays one after the other: ids separated by "
             "commas, or the name of a suite (atari57). Unset: level_name if it is given, "
             "otherwise the levels of the run.")
    deterministic: bool = flag(
        False, group="Test", own=True, needs=in_mode("test", "record", evaluator=True),
        text="Choose the most likely action at every step. Unset: draw each action from the "
             "policy, as in training. (For the same weights twice: deterministic_run.)")
    eval_epsilon: float = flag(
        0.001, group="Test", own=True, least=0, most=1,
        text="Share of random actions in tests and evaluation of dqn, r2d2 and pqn, unless "
             "deterministic is given. Other algorithms draw actions from their policy.")
    render: bool = flag(
        False, group="Test", own=True, needs=in_mode("test"),
        text="Show environment 0 in a window; this needs a display.")
    video_dir: str = flag(
        "", group="Test", own=True, needs=in_mode("test", evaluator=True),
        short="folder for videos of --mode=test and of an evaluator",
        text="Folder for videos (mp4) of the first game of each level; an evaluator records one "
             "of each checkpoint. Unset: no videos.")
    video_overlay: bool = flag(
        False, group="Test", own=True, needs=in_mode("test", evaluator=True),
        text="Write the action, the value estimate (of the action, for dqn, r2d2 and pqn) and the "
             "return into each picture of the video.")
    episodes: int = flag(
        100, group="Test", least=1, own=True, needs=in_mode("record"),
        text="Number of complete games that --mode=record plays.")
    record_dir: str = flag(
        "", group="Test", own=True, needs=in_mode("record"),
        text="Folder of the data set that --mode=record writes, or adds games of the same kind "
             "to. Unset: recorded/ in the run's folder.")
    export_dir: str = flag(
        "", group="Test", own=True, needs=in_mode("export"),
        text="Folder that --mode=export writes. Unset: export/ in the run's folder.")
    export_format: str = flag(
        "saved_model", group="Test", own=True, needs=in_mode("export"),
        text="What --mode=export writes. saved_model: for TensorFlow. numpy: a file of Python that "
             "needs NumPy alone. onnx: an ONNX model, always with the most likely actions. Or a "
             "format of yours, which a module of --import registers (sandbox/export_and_video.md).")

    # -- Processes
    job_name: str = flag(
        "", group="Processes", choices=("", "learner", "actor", "evaluator"), own=True,
        scope="process",
        text="Role of this process. Unset: start num_learners learners and num_actors actors on "
             "this machine. An evaluator waits for checkpoints of the run in --logdir and tests "
             "each new one.")
    task: int = flag(
        0, group="Processes", least=0, own=True, scope="process",
        text="Number of this actor, from 0. Every actor of a run needs a number of its own.")
    learner: int = flag(
        -1, group="Processes", least=-1, own=True, scope="process",
        text="Number of the learner, counted from 0 in learner_hosts, that an actor connects to "
             "first; with learner_assignment=fixed it uses no other. -1: task modulo the number "
             "of learners.")
    learner_hosts: str = flag(
        "localhost:8001", group="Processes", own=True, scope="process",
        text="host:port at which actors reach the learner; for several learners, one address for "
             "each rank, separated by commas. If only one is given, the learners that "
             "num_learners starts take that port and those after it. Port 0: the learner takes "
             "the first free port from 8001 up and prints it. Unset, and without job_name: "
             "localhost:0.")
    bind_address: str = flag(
        "", group="Processes", own=True, scope="process",
        text="host:port at which the learner listens. Unset: its address in learner_hosts. Set "
             "it where actors reach the learner at an address that its own machine does not "
             "have. Port 0: the port in learner_hosts.")
    num_learners: int = flag(
        1, group="Processes", least=1, own=True,
        short="learners that this program starts",
        text="Number of learners that a process without job_name starts. If there are several, "
             "it starts them with mpirun.")
    num_actors: int = flag(
        2, group="Processes", least=0, own=True, auto=True,
        short="actors that it starts, for all learners together",
        text="Number of actors that a process without job_name starts, for all its learners "
             "together. auto: one for each core; with an algorithm that plays in rounds, at least "
             "one for each learner.")
    learner_assignment: str = flag(
        "balance", group="Processes", choices=("balance", "fixed"), only_with=_ACTORS_CHOOSE,
        text="Which learner an actor sends its unrolls to; --learner names the first. balance: a "
             "learner whose queue is full moves an actor to the learner that waits longest, at "
             "most one every 5 s, and an actor moves away from a learner that it cannot reach. "
             "fixed: an actor never moves. With inference=learner actors never move, whatever "
             "this flag says.")
    inference: str = flag(
        "actor", group="Processes", choices=("actor", "learner", "auto"),
        short="where actions are chosen: actor, learner, auto",
        text="Where actions are chosen. actor: every actor runs the network and fetches new "
             "parameters from its learner. learner: actors only step environments and send "
             "observations; the learner runs the network for all of them together. auto: learner "
             "if the learner has a GPU, the network has at least 100,000 weights and the "
             "algorithm does not play in rounds, otherwise actor; actors ask their learner.")
    num_envs: int = flag(
        16, group="Processes", least=1, own=True, auto=True,
        short="environments per actor",
        text="Environments per actor. Their observations go through the network as one batch, in "
             "which an environment of several agents has one of each. "
             "auto: 32 if an observation holds at least 1,000 numbers, as images do, otherwise "
             "16, divided by an environment's agents; with an algorithm that plays in rounds, at "
             "most an actor's share of batch_size, and a number that divides it. --mode=test and "
             "an evaluator play this number of games at a time (auto: 16).")
    env_groups: int = flag(
        AUTO, group="Processes", least=1, own=True, auto=True, only_with=_ACTORS_CHOOSE,
        text="Groups into which an actor divides its environments. While the network reads the "
             "observations of one group, the other groups step, each in a thread. auto: 2 if a "
             "process without job_name starts fewer actors than there are cores and an "
             "observation holds at least 1,000 numbers, otherwise 1. With inference=learner the "
             "flag has no effect: there are at least 2.")
    env_workers: int = flag(
        0, group="Processes", least=0, own=True,
        text="Processes in which an actor's environments step, besides its own; each takes some "
             "50 MB and what its environments take. Worth it where a step takes more than a "
             "millisecond and cores are idle. Each group of env_groups has its share, at least "
             "one. 0: the actor steps them itself, one after the other. Games of Atari, and "
             "environments that are vectors already, have no use for it.")
    token_file: str = flag(
        "", group="Processes", own=True, scope="process",
        text="File that holds the secret which actors show to learners, and the certificates by "
             "which their connections are encrypted; it is created if it does not exist. Unset: "
             "a file of this user, the same for all runs.")
    transport_security: str = flag(
        "auto", group="Processes", choices=("auto", "tls", "none"), own=True,
        text="Encryption between actors and learners. auto: TLS 1.3 at the learner's address, for "
             "holders of its token file only; actors of the same user and machine use a Unix "
             "socket that no other user can open. tls: TLS for these, too. none: no encryption, "
             "for networks that are closed to others; whoever reaches the learner's port can "
             "slow it down or end it. The same for all processes of a run.")
    device: str = flag(
        "auto", group="Processes", choices=("auto", "cpu", "gpu"), own=True,
        text="Processor that a learner trains on. auto: a GPU that CUDA_VISIBLE_DEVICES shows, a "
             "different one for each learner of a host; the CPU if there is none. gpu: the same, "
             "but an error if there is none.")
    actor_device: str = flag(
        "cpu", group="Processes", choices=("cpu", "gpu"), own=True, only_with=_ACTORS_CHOOSE,
        text="Processor that an actor's network runs on, or that of a test, a recording or an "
             "evaluator. gpu: the GPU with the number of the actor's task, else the first one, "
             "modulo the number of GPUs that CUDA_VISIBLE_DEVICES shows.")
    intra_op_threads: int = flag(
        0, group="Processes", least=0, own=True,
        text="Threads that TensorFlow uses within one operation. 0: 1 in an actor or evaluator; "
             "in a learner the host's cores divided by its learners. If both thread flags are 0, "
             "a learner uses 1 thread for everything if observations hold fewer than 1,000 "
             "numbers, it has no GPU, xla is off and the algorithm is built in; one learner "
             "of SAC, TD3, MPO or IQL uses 2 if its networks are large.")
    inter_op_threads: int = flag(
        0, group="Processes", least=0, own=True,
        text="Operations that TensorFlow runs at the same time. 0: 2 in a learner, 1 in other "
             "processes; see intra_op_threads for the exception.")
    # fmt: on
