"""--log_games in real runs: every game of every actor, whoever chooses the actions."""

from collections import Counter

import pytest
from processes import EXPERIMENT, run
from rows import read_rows

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("where", ["actor", "learner"])
def test_a_run_writes_a_line_for_each_game(tmp_path, where):
    code, printed = run(
        *(*EXPERIMENT, "--level_name=catch", "--num_actors=2", "--num_envs=4", "--env_groups=2"),
        *("--total_environment_frames=4000", f"--logdir={tmp_path / 'run'}", "--log_games"),
        f"--inference={where}",
        limit=400,
    )
    assert code == 0, printed
    games = read_rows(tmp_path / "run", "games.jsonl")
    assert 3500 / 9 < len(games) < 8000 / 9
    assert {game["level"] for game in games} == {"catch"}
    assert {(game["length"], abs(game["return"])) for game in games} == {(9, 1.0)}
    played_by = {(game["actor"], game["environment"]) for game in games}
    assert len(played_by) == 8, "an environment has one number, and an actor four of them"
    assert Counter(actor for actor, _ in played_by) == {0: 4, 1: 4}
    assert {environment for _, environment in played_by} == set(range(8))
    versions = [game["policy_version"] for game in games]
    assert min(versions) == 0
    assert max(versions) > 10
    assert [game["frames"] for game in games] == sorted(game["frames"] for game in games)
    row = read_rows(tmp_path / "run")[-1]
    mean = sum(game["return"] for game in games[-100:]) / 100
    assert row["episode_return"] == pytest.approx(mean, abs=0.01)
