"""Files of environments from Python belong to the folder that they are in, wherever it is moved."""

from impala_mm.config import environment_files


def test_a_moved_runs_own_file_counts_though_another_run_is_where_it_was(tmp_path):
    before, now = tmp_path / "c", tmp_path / "c-old"
    for folder in (before, now):
        (folder / "checkpoints" / "0000000001").mkdir(parents=True)
        (folder / "Sign.environment").touch()
    call = f'x:wrap{{"path": "{before}/Sign.environment"}}'
    settings = {"level_name": f"{before}/Sign.environment,catch", "env_wrappers": call, "seed": 1}
    found = environment_files.relocated(settings, now / "checkpoints" / "0000000001")
    assert found["level_name"] == f"{now}/Sign.environment,catch"
    assert found["env_wrappers"] == f'x:wrap{{"path": "{now}/Sign.environment"}}'
    other = {"level_name": f"{before}/Lost.environment"}
    assert environment_files.relocated(other, now) == other, "it has none of this name"
    several = {"level_name": ["a.environment", "catch"]}
    assert environment_files.relocated(several, now) == several, "a file of a user's own"


def test_without_folders_moving_changes_nothing():
    text = '/a/b/Sign.environment,catch,x:wrap{"path": "/a/b/w.environment"}'
    moved = text.replace("/a/b", "/elsewhere")
    assert environment_files.without_folders(text) == environment_files.without_folders(moved)
    assert environment_files.without_folders("catch") == "catch"
