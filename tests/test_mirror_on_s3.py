"""A run that is mirrored to S3, as moto plays it, is killed and continues in a new folder."""

import os
import re
import shutil
import sys

import pytest
from processes import Process, catch_command, free_port, run
from rows import read_rows, until_row

from impala_mm.records import checkpoint

pytest.importorskip("s3fs", reason="pip install s3fs 'moto[server]'")
pytest.importorskip("moto", reason="pip install s3fs 'moto[server]'")
pytestmark = pytest.mark.slow


@pytest.fixture
def store(monkeypatch):
    """S3 with a bucket; yield its server, which prints each request, and its address."""
    port = free_port()
    server = Process(sys.executable, "-m", "moto.server", "-p", str(port), PYTHONUNBUFFERED="1")
    server.until("Running on")
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "of-a-test",
        "AWS_SECRET_ACCESS_KEY": "of-a-test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import s3fs  # noqa: PLC0415

    files = s3fs.S3FileSystem(skip_instance_cache=True)  # another has the last port
    files.mkdir("bucket")
    yield server, files
    server.kill()


def test_a_run_that_is_killed_during_an_upload_continues_in_an_empty_folder(store, tmp_path):
    server, files = store
    lost, new = tmp_path / "lost", tmp_path / "new"
    flags = ("--mirror=s3://bucket/run", "--num_actors=1", "--save_checkpoint_secs=2")
    first = Process(*catch_command(lost, *flags, "--total_environment_frames=1e8"))
    server.until(r"PUT /bucket/run/checkpoints/\d+/about.json", 200)
    server.until(r"PUT /bucket/run/metrics.jsonl", 200)
    server.until(r"PUT /bucket/run/checkpoints/\d+/variables", 200)
    first.kill_all()
    seen = max(row["updates"] for row in read_rows(lost))
    shutil.rmtree(lost)
    files.invalidate_cache()
    complete = [int(p.split("/")[-2]) for p in files.glob("bucket/run/checkpoints/*/about.json")]
    second = Process(*catch_command(new, *flags, "--total_environment_frames=1e8"))
    second.until(r"downloaded the run from s3://bucket/run: \d+ checkpoints", 200)
    resumed = int(second.until(r"resumed at [\d,]+ frames, update (\d+)", 200)[1])
    assert resumed == max(complete)
    assert resumed <= seen
    rows = read_rows(new)
    assert rows  # those of the machine that is lost
    until_row(new, lambda row: row["updates"] > resumed)
    assert read_rows(new)[: len(rows)] == rows
    second.interrupt()
    assert "error" not in second.printed()
    files.invalidate_cache()
    last = checkpoint.all_in(new / "checkpoints")[-1]
    assert files.cat(f"bucket/run/checkpoints/{last.name}/about.json") == (
        (last / "about.json").read_bytes()
    )
    assert files.cat("bucket/run/metrics.jsonl") == (new / "metrics.jsonl").read_bytes()


def test_stores_that_cannot_be_used(store, tmp_path):
    command = (*catch_command(tmp_path / "run"), "--num_actors=1")
    code, printed = run(*command, "--mirror=s3://no-such-bucket/run")
    assert code == 2, printed
    assert re.search(r"--mirror=s3://no-such-bucket/run cannot be .*bucket does not exist", printed)
    code, printed = run(*command, "--mirror=nosuch://bucket/run")
    assert code == 2, printed
    assert "Protocol not known: nosuch" in printed
    assert not os.path.exists(tmp_path / "run" / "starts.jsonl")
