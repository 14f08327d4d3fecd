"""The names that other trainers give our flags: the answer to a flag that does not exist here.

The names are those of CleanRL, Stable-Baselines3, RLlib, Sample Factory and SEED RL.
"""

import re

from impala_mm.config import messages

# Names elsewhere, by our flags as a message names them.
_ELSEWHERE = {
    "--level_name": "env env_id env_name environment game",
    "--algorithm": "algo alg agent",
    "--total_environment_frames (a step counts --num_action_repeats frames)": (
        "total_timesteps num_timesteps timesteps total_steps max_steps num_env_steps total_frames "
        "train_for_env_steps stop_timesteps"
    ),
    "--stop_at_return": "stop_reward target_return",
    "--learning_rate": "lr alpha",
    "--learning_rate_schedule": "anneal_lr lr_schedule",
    "--discounting": "gamma discount discount_factor",
    "--gae_lambda (ppo) or --vtrace_lambda (impala)": "lambda lambda_ lam",
    "--agent_name": "network model encoder policy_kwargs",
    "--mlp_sizes": "hidden_sizes net_arch fcnet_hiddens",
    "--agent_name, such as MLPLSTMAgent or MLPGRUAgent": "use_lstm use_rnn recurrent rnn_type",
    "--lstm_size": "rnn_size hidden_size lstm_cell_size",
    "--conv_factor": "nn_scale width_scale",
    "--conv_units": "features_dim encoder_conv_mlp_layers",
    "--num_actors": "workers num_workers n_workers num_env_runners",
    "--num_envs": "n_envs num_envs_per_worker num_envs_per_env_runner",
    "--num_envs of --mode=test or --job_name=evaluator": (
        "num_eval_envs n_eval_envs eval_num_envs evaluation_num_envs"
    ),
    "--unroll_length": "num_steps nsteps rollout rollout_length rollout_fragment_length",
    "--batch_size, in unrolls": "train_batch_size minibatch_size",
    "--epochs (ppo)": "update_epochs n_epochs num_epochs num_sgd_iter",
    "--minibatches (ppo)": "num_minibatches nminibatches",
    "--clip (ppo)": "clip_coef clip_range clip_param",
    "--entropy_cost": "ent_coef entropy_coeff exploration_loss_coeff",
    "--baseline_cost": "vf_coef vf_loss_coeff value_loss_coeff",
    "--gradients_clipping": "max_grad_norm grad_clip clip_grad_norm",
    "--epsilon, of the optimizer": "eps adam_eps optimizer_epsilon",
    "--replay": "buffer_size buffer_capacity replay_buffer_size",
    "--replay_min, or --random_steps (sac)": "learning_starts",
    "--target_share or --target_period": "tau target_network_frequency target_update_interval",
    "--epsilon_start, --epsilon_end and --epsilon_frames (dqn, r2d2)": (
        "exploration exploration_fraction exploration_initial_eps exploration_final_eps start_e "
        "end_e"
    ),
    "--life_loss_ends": "terminal_on_life_loss episodic_life episode_life",
    "--no_ops": "noop_max max_noops num_noops",
    "--frame_stack": "num_stack stack_num stack_size framestack env_framestack",
    "--num_action_repeats": "frame_skip frameskip env_frameskip",
    "--logdir": (
        "exp_name experiment run_name train_dir log_dir save_dir save_path storage_path outdir"
    ),
    "--logdir=RUN": "resume resume_from restore load load_path",
    "--save_checkpoint_secs": "save_freq save_every_sec checkpoint_freq",
    "--deterministic_run": "torch_deterministic cudnn_deterministic",
    "--mode=test --video_dir=FOLDER": "capture_video save_video record_video",
    "--mode=test --deterministic": "greedy explore",
    "--test_num_episodes": "eval_episodes n_eval_episodes max_num_episodes",
    "--track": "wandb with_wandb wandb_project wandb_project_name",
    "--device": "cuda gpu use_gpu num_gpus",
    "--workers_csv_path of {frontend}": "hosts hostfile cluster workers_csv",
}
_HERE = {name: ours for ours, names in _ELSEWHERE.items() for name in names.split()}


def here(name: str) -> str:
    """Return our flags for a name elsewhere, as a message names them; empty if none are known."""
    ours = _HERE.get(name.lower().replace("-", "_"), "")
    return ours.format(frontend=messages.program(frontend=True))


def of_flag(flag: str) -> str:
    """Return what others call this flag, for a search in the help."""
    told = re.compile(rf"--{flag}\b")
    return " ".join(names for ours, names in _ELSEWHERE.items() if told.search(ours))
