"""What other trainers call our flags: each name is answered, by flags that exist."""

import dataclasses
import re

import pytest

from impala_mm.config import command_line, flags, peer_names, replay_mix
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config
from launcher.plan.settings import LauncherConfig

OF_TRAINING = {
    f.name: f for name in BUILT_IN for f in dataclasses.fields(Config.of_algorithm(name))
}
OURS = OF_TRAINING.keys() | {f.name for f in dataclasses.fields(LauncherConfig)}
TRAINERS = sorted(path.stem for path in peer_names.TABLES.glob("*.csv"))
ROWS = [(trainer, row) for trainer in TRAINERS for row in peer_names.table(trainer)]
_VALUE = re.compile(r"--(\w+)=([\w.:=,+-]+)")
# All flags that their programs define and all parameters that their gin files bind, as a search of
# their sources found them (of the predecessor: tests/sandbox/test_moving.py).
THEIRS = {
    "seed_rl": """
        action_gaussian_std_fn action_min_gaussian_std action_ratio action_std_for_zero_param
        activation actors_per_worker adam_epsilon advantage_estimator agent baseline_cost
        batch_mode batch_size batch_size_transitions batches_per_step block_inference_on_training
        bootstrap_net burn_in clip_norm compensate dataset_path discount_factor discounting
        discretization entropy entropy_cost entropy_cost_adjustment_speed env_batch_size env_name
        environment epochs_per_step epsilon eval_epsilon gain game gin_bindings gin_config height
        her_substitution_probability her_window_length homepath importance_sampling_exponent
        inference_batch_size init_checkpoint input_clipping job-dir kernel_init kl_cost lambda_
        last_kernel_init_policy last_kernel_init_value learning_rate level_cache_dir
        log_batch_frequency log_episode_frequency log_frequency log_key logdir lr_decay_multiplier
        lstm_size max_abs_reward max_random_noops mean_std_tracker mlp_size mujoco_model
        n_actions_per_dim n_critics n_lstm_layers n_mlp_layers n_steps normalize_observations
        num_action_repeats num_actors_with_summaries num_checkpoints num_envs num_eval_envs
        num_layers_policy num_layers_value num_saved_models num_training_tpus num_units_policy
        num_units_value number_of_sub_batches observation_normalizer optimizer_fn policy_loss
        polyak prefetch_batches print_episode_summaries priority_exponent profile_inference_return
        regularizer render replay_buffer_min_size replay_buffer_size replay_ratio
        reward_experiment reward_normalizer run_mode save_checkpoint_secs server_address shared
        smm_size stack_size std_independent_of_input step_size_transitions step_size_unroll
        sticky_actions summary_flush_seconds summary_max_queue_size target_entropy task
        total_environment_frames unroll_length unroll_queue_max_size update_target_every_n_step
        value_function_rescaling_epsilon width workers
    """.split(),
    "elite_buffer_vtrace": """
        actions_count avg_buff_size background_save basic_verbose batch_size c-const
        cache_output_buffer_size cache_sample_size caching caching_threads clip_rewards debug
        discarding_strategy entropy_loss_weight env environment_max_steps envs_per_worker
        episodic_life feature_out_layer_size frame_scale_resolution frames_stacked gamma
        gradient_clip_by_norm_threshold grayscaling_frames kl_div_threshold learner_thread_count
        load_model_url load_optimizer_save lr lr_end_value lr_scheduler_steps
        lz4_compression_level multiprocessing_backend noop_threshold observation_shape op_mode
        optimizer policy_cloning_loss_weight policy_gradient_loss_weight r_f_steps render
        replay_parameters replay_writer_queue_size reproducible reward_clipping_method rho-const
        rmsprop_eps save_model_period seed shared_queue_size skipped_frames test_episode_count
        training_fill_in_factor use_additional_scaling_FC_layer use_kl_mask
        use_policy_cloning_loss use_replay_compression use_value_cloning_loss
        value_cloning_loss_weight value_loss_weight verbose_learner_out_int verbose_worker_out_int
        worker_count worker_verbose
    """.split(),
    "reincarnating_rl": """
        activation agent agent_name anneal_learning_rate anneal_steps base_dir batch_size beta1
        beta2 centered clip_critic_loss clip_rewards cql_coefficient create_environment_fn
        data_augmentation debug_mode decay_period disable_jit distill_decay_period
        distill_loss_coefficient distill_temperature distributional double_dqn dqfd_margin dueling
        entropy_coefficient environment_name eps epsilon epsilon_decay_period epsilon_eval
        epsilon_fn epsilon_train evaluation_steps final_lr game_name gamma gin_bindings gin_files
        hidden_units initial_lr kappa lambda_ learning_rate load_replay loss_type lr_decay margin
        margin_coefficient max_capacity max_gradient_norm max_roll_in_steps max_steps_per_episode
        max_vals min_replay_history min_vals network noisy num_atoms num_epochs num_iterations
        num_layers num_pretraining_iterations num_pretraining_steps num_quantile_samples
        num_tau_prime_samples num_tau_samples num_updates_per_persistent_step
        num_updates_per_train_step observation_dtype observation_shape optimizer replay_capacity
        replay_scheme reward_scale_factor roll_in_guide roll_out_decay_period roll_out_guide_prob
        run_number schedule seed stack_size sticky_actions summary_writing_frequency
        target_entropy target_smoothing_coefficient target_update_period target_update_type
        teacher_agent teacher_checkpoint_dir teacher_checkpoint_file_prefix
        teacher_checkpoint_number teacher_data_ratio teacher_steps training_steps update_horizon
        update_period use_legacy_gym use_new_replay_buffer use_ppo_preprocessing
        use_teacher_actions version vf_coefficient vmax
    """.split(),
}


def test_each_row_names_flags_of_ours_that_exist_or_says_why_there_are_none():
    assert len(ROWS) > 280
    for trainer, row in ROWS:
        named = re.findall(r"--(\w+)", f"{row.here} {row.difference}")
        assert set(named) <= OURS, (trainer, row)
        assert re.match(r"--\w+|flags$", row.here) or (not row.here and row.difference), row


def test_values_that_a_row_gives_are_accepted():
    for _, row in ROWS:
        for name, value in _VALUE.findall(row.here):
            f = OF_TRAINING[name]
            choices = flags.info(f).choices
            assert not choices or set(value.split(",")) <= {*choices}, row
            if f.type in (int, float):
                f.type(value)


def test_a_name_that_is_none_of_ours_has_the_same_answer_in_all_tables():
    answers = {}
    for trainer, row in ROWS:
        for name in row.there.split():
            if name not in OURS:
                assert answers.setdefault(name, row.answer) == row.answer, (trainer, name)


@pytest.mark.parametrize("trainer", THEIRS)
def test_every_name_of_theirs_has_a_row_and_is_answered(trainer):
    rows = {name for row in peer_names.table(trainer) for name in row.there.split()}
    parameters = {name.rpartition(".")[2] for name in rows}
    for name in THEIRS[trainer]:
        assert name in rows | parameters, name
        assert name in OURS or peer_names.here(name), name


def test_a_parameter_of_gin_is_answered_by_its_class():
    for row in peer_names.table("reincarnating_rl"):
        if "." in row.there:
            assert peer_names.here("gin_bindings", f"{row.there} = 3") == row.answer


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--gamma=0.9"], "--gamma; here it is --discounting"),
        (["--capture-video"], "here it is --mode=test --video_dir"),
        (["--batchsize=3"], "did you mean --batch_size?"),
        (["--teapot"], "--teapot (`--help=WORD` searches them)"),
        (["--r_f_steps=10"], "here it is --unroll_length"),
        (
            ["--agent=qdagger_rainbow"],
            "here it is --preset=rainbow,atari-sticky --mode=reincarnate: ",
        ),
        (
            ["--agent", "qdagger_rainbow"],
            "here it is --preset=rainbow,atari-sticky --mode=reincarnate: ",
        ),
        (["--op_mode=test"], "here it is --mode=test"),
        (["--gin_bindings=JaxDQNAgent.min_replay_history = 64"], "here it is --replay_min: "),
        (["--gin_bindings=Theirs.tea = 64"], "each binding is one, or a line of a file"),
        (["--run_mode=actor", "--num_envs=4", "--game=Pong"], "--game; here it is --level_name"),
        (["--num_training_tpus=1"], "it has no counterpart here: TPUs are not supported"),
        (["--replay_parameters=teapot"], "here it is --replay: such as"),
    ],
)
def test_a_flag_that_does_not_exist_is_answered(typed, said, capsys):
    with pytest.raises(SystemExit):
        command_line.parse(["experiment.py", *typed], "", LauncherConfig, Config)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, '
            '{"type": "standard", "capacity": 1000, "sample_ratio": 0.5}]',
            "queue:0.5,uniform:0.5:1000",
        ),
        (
            '[{"type": "custom", "capacity": 1000, "sample_ratio": 0.5, "dist_function":"ln_norm", '
            '"sample_strategy":"elite_sampling", "lambda_batch_multiplier":6, '
            '"alfa_annealing_factor":2.0}, {"type": "queue", "capacity": 1, "sample_ratio": 0.5}]',
            "elite:0.5:1000:distance=l2:lambda=6:anneal=2.0:strategy=3,queue:0.5",
        ),
        (
            '[{"type": "queue", "capacity": 1, "sample_ratio": 0.75}, {"type": "custom", '
            '"capacity": 50, "sample_ratio": 0.25, "dist_function": "cos_dist", '
            '"sample_strategy": "attentive_sampling"}]',
            "queue:0.75,attentive:0.25:50:distance=cosine:lambda=1:anneal=1",
        ),
        (
            '[{"type": "custom", "capacity": 9, "sample_ratio": 1, "dist_function": "ln_norm", '
            '"p": 3, "insert_strategy": "elite_insertion", "elite_batch_size": 5}]',
            "elite:1:9:distance=l3:lambda=1:anneal=1:strategy=3:insertion=elite:compared=5",
        ),
    ],
)
def test_a_replay_of_elite_buffer_vtrace_is_translated(theirs, ours):
    assert peer_names.here("replay_parameters", theirs) == f"; here it is --replay={ours}"
    replay_mix.parse(ours)


def test_a_search_finds_a_flag_by_its_name_elsewhere():
    assert "gamma" in peer_names.of_flag("discounting").split()
    assert not peer_names.of_flag("epsilon_base")
    assert "start_e" not in peer_names.of_flag("epsilon").split(), "another flag's beginning"
