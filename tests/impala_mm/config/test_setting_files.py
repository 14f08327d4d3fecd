"""Presets and files of settings: which value counts, where it is from, what is refused."""

import dataclasses
import json
import tomllib
import types

import pytest

from impala_mm.config import command_line, flag_values, setting_files
from impala_mm.config.settings import Config
from launcher.plan.settings import LauncherConfig

PRESETS = setting_files.preset_names()


def _parse(*arguments, configs=(Config,)):
    objects, given_names = command_line.parse(["experiment.py", *arguments], "", *configs)
    return objects[-1], given_names


def _refused(capsys, *arguments, configs=(Config,)):
    with pytest.raises(SystemExit) as end:
        _parse(*arguments, configs=configs)
    assert end.value.code == 2
    return capsys.readouterr().err.strip()


@pytest.fixture
def file(tmp_path):
    """A function that writes a file of settings and returns the flag that names it."""

    def write(text, name="run.toml"):
        (tmp_path / name).write_text(text)
        return f"--config={tmp_path / name}"

    return write


def test_the_command_line_counts_more_than_the_file_than_the_preset_than_the_algorithm(file):
    of_file = file("batch_size = 64\nlearning_rate = 1e-3\n")
    config, names = _parse("--preset=mujoco-ppo", of_file, "--learning_rate=0.5")
    assert (config.learning_rate, config.batch_size, config.epochs) == (0.5, 64, 10)
    assert config.advantage_scaling == "batch", "PPO's default"
    assert config.discounting == 0.99
    path = of_file.partition("=")[2]
    origins = json.loads(config.origins)
    assert origins["command line"] == ["preset", "learning_rate"]
    assert origins[path] == ["batch_size"]
    assert "epochs" in origins["preset mujoco-ppo"]
    assert {"batch_size", "epochs", "learning_rate", "origins"} <= set(names)
    assert "config" not in names, "other hosts do not have the file"


def test_a_preset_and_a_mode_in_a_flagfile_count_with_all_their_values(tmp_path):
    flags = tmp_path / "flags"
    flags.write_text("--preset=classic-ppo\n--batch_size=4\n")
    config, names = _parse(f"--flagfile={flags}")
    assert (config.algorithm, config.preset, config.batch_size) == ("ppo", "classic-ppo", 4)
    assert "algorithm" in names
    flags.write_text("--mode=reincarnate\n--teacher=cartpole\n")
    assert _parse(f"--flagfile={flags}")[0].offline_updates == 10_000


def test_a_quick_run_may_be_asked_for_in_a_file(file):
    of_file = file('mode = "reincarnate"\nquick = "true"\nteacher = "cartpole"\n')
    assert _parse(of_file)[0].offline_updates == 200
    of_file = file('mode = "reincarnate"\nquick = true\nteacher = "cartpole"\n')
    assert _parse(of_file)[0].offline_updates == 200
    assert _parse(of_file, "--noquick")[0].offline_updates == 10_000


def test_one_text_for_a_flag_that_may_be_repeated_is_one_value(file):
    of_file = file('env = "PYTHONPATH=/x"\n')
    launcher, _ = command_line.parse(["a.py", of_file], "", LauncherConfig, Config)
    assert launcher[0].env == ("PYTHONPATH=/x",)


def test_started_processes_have_the_same_settings_without_the_file(file):
    """The frontend and experiment.py pass what is given on, as flags."""
    of_file = file("mlp_sizes = [32, 16]\nenv_kwargs = {is_slippery = false}\nxla = true\n")
    config, names = _parse("--preset=classic-ppo", of_file, "--seed=5")
    passed = [f"--{n}={command_line.setting_files.to_text(getattr(config, n))}" for n in names]
    again, _ = _parse(*passed)
    assert again == dataclasses.replace(config, config="")
    assert again.mlp_sizes == "32,16"
    assert json.loads(again.env_kwargs) == {"is_slippery": False}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_values_of_a_preset_are_those_of_the_run_and_have_an_effect(preset, capsys):
    config, _ = _parse(f"--preset={preset}")
    table = tomllib.loads((setting_files._PRESETS / f"{preset}.toml").read_text())
    for name in table.keys() - {"suits"}:
        found = getattr(config, name)
        value = table[name] if isinstance(table[name], list) else type(found)(table[name])
        assert setting_files.to_text(found) == setting_files.to_text(value)
    # Agents have their own names, presets of students that of the method.
    is_student = getattr(config, "teacher", "") or config.mode == "train_from"
    algorithm = {"rainbow": "dqn", "drq": "dqn", "r2d2-published": "r2d2", "atari-sticky": "impala"}
    algorithm |= {"redq": "sac", "droq": "sac"}
    assert is_student or algorithm.get(preset, preset.rpartition("-")[2]) == config.algorithm
    flag_values.check_effects(config)
    assert "without effect" not in capsys.readouterr().err


@pytest.mark.parametrize("from_file", [False, True])
def test_of_several_presets_the_last_takes_precedence(from_file, file):
    named = file('preset = ["atari-ppo", "atari-sticky"]\n') if from_file else ""
    config, names = _parse(named or "--preset=atari-ppo,atari-sticky", "--no_ops=3")
    assert (config.algorithm, config.clip, config.no_ops) == ("ppo", 0.1, 3)
    assert (config.life_loss_ends, config.sticky_actions) == (False, 0.25)
    assert config.fire_after_life_loss is False, "unlike PPO's default for Atari"
    assert {"life_loss_ends", "clip"} <= set(names)
    origins = json.loads(config.origins)
    assert "life_loss_ends" in origins["preset atari-sticky"]
    assert "clip" in origins["preset atari-ppo"]
    turned, _ = _parse("--preset=classic-ppo,atari-ppo", "--level_name=CartPole-v1")
    assert (turned.batch_size, turned.unroll_length) == (32, 64)
    other, _ = _parse("--preset=atari-ppo,classic-ppo")
    assert (other.batch_size, other.unroll_length) == (16, 128)


def test_a_wrong_one_of_several_presets_is_refused(capsys):
    said = _refused(capsys, "--preset=rainbow,atari-stick")
    assert said.startswith("error: --preset=rainbow,atari-stick: it must be atari-impala, ")
    assert said.endswith("(did you mean atari-sticky?)")


def test_without_a_preset_dqn_has_the_values_of_its_preset_on_atari():
    alone, _ = _parse("--algorithm=dqn", "--level_name=PongNoFrameskip-v4")
    preset, _ = _parse("--preset=dqn")
    for name in type(alone).FOR_ATARI:
        assert getattr(alone, name) == getattr(preset, name)
    elsewhere, _ = _parse("--algorithm=dqn", "--level_name=CartPole-v1")
    assert (elsewhere.batch_size, elsewhere.replay_ratio) == (32, 0)
    given, _ = _parse("--algorithm=dqn", "--level_name=ALE/Pong-v5", "--batch_size=3")
    assert (given.batch_size, given.unroll_length) == (3, 4)


@pytest.mark.parametrize("preset", ["", "mujoco-sac", "qdagger", "atari-r2d2", "bitflip-dqn"])
def test_what_show_config_prints_is_a_file_with_the_same_settings(preset, file, capsys):
    given = [f"--preset={preset}"] if preset else []
    given += ["--seed=7", '--test_levels=a"b,c\\d']
    with pytest.raises(SystemExit) as end:
        _parse(*given, "--show_config")
    assert end.value.code == 0
    printed = capsys.readouterr().out
    (of_seed,) = [line for line in printed.splitlines() if line.startswith("seed = 7 ")]
    assert of_seed.endswith("# command line")
    assert _values(_parse(file(printed))[0]) == _values(_parse(*given)[0])


def test_show_config_names_what_a_run_keeps_that_would_be_resumed(tmp_path, capsys):
    recorded = {"normalize_observations": True, "box_policy": "normal", "seed": 3}
    (tmp_path / "settings.json").write_text(json.dumps(recorded))
    with pytest.raises(SystemExit):
        _parse(f"--logdir={tmp_path}", "--box_policy=clipped", "--show_config")
    lines = capsys.readouterr().out.splitlines()
    sources = {line.split(" = ")[0]: line.split("  # ") for line in lines if " = " in line}
    kept = [n for n, (_, source) in sources.items() if source == f"kept from the run in {tmp_path}"]
    assert kept == ["normalize_observations"]
    assert sources[kept[0]][0].rstrip().endswith("true")
    assert sources["box_policy"][1] == "command line"


def _values(config):
    unequal = {"config", "origins", "show_config", "preset"}
    return {n: v for n, v in dataclasses.asdict(config).items() if n not in unequal}


def test_a_recorded_run_sets_what_does_not_belong_to_a_process(file):
    given = "--algorithm=ppo --batch_size=48 --logdir=/a --num_learners=2 --keep_checkpoints=9"
    config, _ = _parse(*given.split(), "--mode=train_from", "--checkpoint=/c")
    recorded = dataclasses.asdict(config) | {"origins": {"command line": ["batch_size"]}}
    of_file = file(json.dumps(recorded), "settings.json")
    again, _ = _parse(of_file)
    assert (again.algorithm, again.batch_size, again.num_learners) == ("ppo", 48, 1)
    assert (again.logdir, again.mode, again.checkpoint, again.keep_checkpoints) == (
        "", "train", "", 3,
    )  # fmt: skip
    of_frontend, names = _parse(of_file, configs=(LauncherConfig, Config))
    assert of_frontend.batch_size == 48
    assert "num_learners" not in names, "the CSV says it"


def test_what_a_recorded_runs_user_gave_and_no_file_sets_is_named_once(file, capsys):
    given = ("--logdir=/a", "--num_learners=2", "--replay_save", "--keep_checkpoints=3")
    config, _ = _parse(*given, "--preset=tmaze-r2d2", "--actor_device=gpu")
    recorded = dataclasses.asdict(config) | {"origins": json.loads(config.origins)}
    of_file = file(json.dumps(recorded), "settings.json")
    capsys.readouterr()
    _parse(of_file, "--actor_device=cpu")
    said = capsys.readouterr().err
    assert said.startswith(f"note: {of_file} ")
    assert said.endswith(": --num_learners=2 --num_envs=8 --replay_save=true\n")
    _parse(of_file, "--num_envs=4", "--num_learners=3", "--replay_save=false", "--actor_device=gpu")
    assert not capsys.readouterr().err
    _parse(of_file, configs=(LauncherConfig, Config))
    said = capsys.readouterr().err
    assert "--replay_save=true" in said
    assert "--num_learners" not in said, "the frontend refuses it"
    for odd in ("x", ["num_envs"], {"command line": 3, "y": [["num_envs"]]}):
        _parse(file(json.dumps(recorded | {"origins": odd}), "settings.json"))
        assert not capsys.readouterr().err


REFUSED = {
    "batchsize = 3": "{file}: there is no flag --batchsize",
    "batch_size = 0": "{file}: --batch_size=0: it must be at least 1",
    'batch_size = "many"': "{file}: batch_size = 'many': ",
    "clip = 0.1": "{file}: there is no flag --clip of --algorithm=impala; --algorithm=ppo has it",
    "seed = [[1]]": "{file}: seed = [[1]]: ",
    "batch_size": "--config={file} is no TOML",
    'config = "b"': "--config={file}: write --config on the command line, not in a file",
    'optimizer = "adams"': "{file}: --optimizer=adams: ",
    'preset = "mujoco"': "{file}: --preset=mujoco: ",
    '{"batch_size": 1,}': "--config={file} is no JSON",
    '{"batch_size": 1, "new_flag": 2}': "{file}: there is no flag --new_flag here",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_file_is_refused_by_its_name(text, file, capsys):
    of_file = file(text)
    said = _refused(capsys, of_file)
    assert said.startswith("error: " + REFUSED[text].format(file=of_file.partition("=")[2]))
    assert "\n" not in said


def test_a_file_that_cannot_be_read_is_refused(tmp_path, capsys):
    said = _refused(capsys, f"--config={tmp_path / 'absent'}")
    assert f"--config={tmp_path / 'absent'}: No such file" in said
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    said = _refused(capsys, f"--config={tmp_path / 'bytes'}")
    assert f"--config={tmp_path / 'bytes'} is no text in UTF-8" in said


def test_a_preset_for_another_algorithm_is_refused_with_the_algorithm_that_has_the_flag(capsys):
    said = _refused(capsys, "--preset=atari-ppo", "--algorithm=impala")
    assert said.startswith("error: preset atari-ppo: there is no flag --")
    assert said.endswith("of --algorithm=impala; --algorithm=ppo has it")


def test_a_refusal_names_the_algorithm_of_a_preset_or_file_wherever_it_stands(file, capsys):
    last = file('clip = 0.1\nalgorithm = "sac"\n')
    for given in (["--preset=mujoco-sac", "--clip=0.1"], [last], [last, "--clip=0.1"]):
        said = _refused(capsys, *given)
        assert said.endswith("flag --clip of --algorithm=sac; --algorithm=ppo has it")


def _environment(level, emulator=False, has_box=False):
    actions = types.SimpleNamespace(has_box=has_box)
    return types.SimpleNamespace(level_name=level, emulator=emulator, actions=actions)


def test_a_preset_for_another_kind_of_environment_is_refused():
    pong, robot = _environment("Pong", emulator=True), _environment("Hopper-v4", has_box=True)
    cart = _environment("CartPole-v1")
    why = setting_files.why_unsuited
    assert why("atari-ppo", pong) == why("mujoco-ppo", robot) == why("", cart) == ""
    assert why("classic-ppo", cart) == ""
    for preset in ("atari-ppo", "mujoco-ppo"):
        assert f"--preset={preset} is for " in why(preset, cart)
    assert why("catch-impala,atari-sticky", cart).startswith("--preset=atari-sticky is for Atari")
    assert why("atari-ppo,atari-sticky", pong) == ""


def test_old_names_of_flags_hold_in_a_file_as_on_the_command_line(file, capsys):
    given_file = file('learner_host = "a:1"\nactor_hosts = "b:1"\n')
    config, given_names = _parse(given_file)
    assert config.learner_hosts == "a:1"
    assert "learner_hosts" in given_names
    said = capsys.readouterr().err
    assert "--learner_host is an old name of --learner_hosts\n" in said
    assert "--actor_hosts is an old flag without effect" in said
    assert _parse(given_file, "--learner_hosts=c:1")[0].learner_hosts == "c:1"
    of_alias = file('mode = "test"\npolicy = "cartpole"\n')
    assert _parse(of_alias)[0].checkpoint == "cartpole"


def test_reincarnating_has_settings_of_its_own_which_others_replace(file, capsys):
    asked = ("--mode=reincarnate", "--teacher=cartpole")
    config, names = _parse(*asked)
    assert (config.teacher_method, config.offline_updates) == ("qdagger", 10_000)
    assert {"teacher_method", "offline_updates"} <= set(names), "other processes get them, too"
    assert set(json.loads(config.origins)["mode reincarnate"]) <= set(names)
    of_file = file('mode = "reincarnate"\nteacher = "cartpole"\noffline_updates = 7\n')
    for arguments in ((of_file,), (*asked, "--offline_updates=7")):
        config, _ = _parse(*arguments)
        assert (config.teacher_method, config.offline_updates) == ("qdagger", 7)
    config, _ = _parse(of_file, "--mode=train")
    assert (config.teacher_method, config.offline_updates) == ("kickstarting", 7)
    said = _refused(capsys, *asked, "--algorithm=tests.helpers.dqn_like")
    assert "there is no flag --teacher" in said


def test_quick_makes_the_phases_short_whatever_the_preset_says():
    asked = ("--mode=reincarnate", "--preset=qdagger", "--quick")
    config, _ = _parse(*asked)
    longer, _ = _parse(*asked[:2])
    assert config.offline_updates < longer.offline_updates
    assert config.teacher_steps < longer.teacher_steps
    assert config.max_seconds < 60
    assert config.teacher_cost == longer.teacher_cost
    assert _parse(*asked, "--offline_updates=99")[0].offline_updates == 99
    assert _parse("--quick", "--teacher=cartpole")[0].offline_updates == 0


def test_reincarnating_adds_no_offline_updates_where_nothing_is_learnt_in_them():
    """A policy learns from recorded games by its teacher's cost, and DQN by their rewards."""
    for quick in ((), ("--quick",)):
        asked = ("--mode=reincarnate", *quick)
        assert _parse(*asked, "--preset=jsrl")[0].offline_updates == 0
        assert _parse(*asked, "--teacher=cartpole", "--teacher_cost=0")[0].offline_updates == 0
        assert _parse(*asked, "--preset=reload")[0].offline_updates == 0
        for preset in ("kickstarting", "dqfd", "jsrl --teacher_cost=2 --teacher_method=constant"):
            config, _ = _parse(*asked, *f"--preset={preset}".split())
            assert config.offline_updates > 0, preset
    with pytest.raises(SystemExit):
        _parse("--mode=reincarnate", "--preset=jsrl", "--offline_updates=5")
