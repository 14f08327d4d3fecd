"""Which files of a clone other hosts get."""

import pytest

from launcher.hosts.project_files import list_clone


@pytest.mark.parametrize(
    "name", ["hosts.csv", "workers.csv~", "workers.csv.bak", "cluster.CSV", "hosts.txt", "hosts"]
)
def test_no_copy_of_a_csv_with_passwords_leaves_this_machine(tmp_path, name):
    (tmp_path / name).write_text("# my hosts\njob,ip,ssh_password\nactor,far,hunter2\n")
    (tmp_path / "page.md").write_text("The column `ssh_password`.\n")
    (tmp_path / "workers.csv.example").write_text("job,ip,ssh_password\n")
    (tmp_path / "pong-token").mkdir()
    (tmp_path / "pong-token" / "learner").write_text("-----BEGIN PRIVATE KEY-----\n")
    assert list(list_clone(tmp_path)) == ["page.md", "workers.csv.example"]
