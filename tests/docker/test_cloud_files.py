"""The example files for SkyPilot and dstack: their keys, and the frontend's command in them."""

import os
import re

import pytest
import yaml
from processes import ROOT, run

# The keys of their documentation that we use.
_SKYPILOT = {"name", "num_nodes", "workdir", "resources", "envs", "setup", "run"}
_DSTACK = {"type", "name", "nodes", "startup_order", "stop_criteria", "python", "repos", "env"}
_DSTACK |= {"commands", "resources"}


@pytest.mark.parametrize(
    ("file", "keys", "nodes", "variables"),
    [
        ("skypilot.yaml", _SKYPILOT, "num_nodes", ("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK")),
        ("impala.dstack.yml", _DSTACK, "nodes", ("DSTACK_NODES_IPS", "DSTACK_NODE_RANK")),
    ],
)
def test_the_command_of_a_file_starts_a_run_on_its_machines(file, keys, nodes, variables):
    read = yaml.safe_load((ROOT / "docker" / file).read_text())
    assert read.keys() == keys
    command = (read.get("run") or read["commands"][-1]).strip()
    machines = [f"10.0.0.{number}" for number in range(read[nodes])]
    environment = dict(zip(variables, ("\n".join(machines), "0"), strict=True)) | {"BUCKET": "b"}
    code, printed = run("bash", "-c", f"{command} --dry_run", **environment)
    assert code == 0, printed
    assert set(re.findall(r"^# [\w-]+ on (\S+),", printed, re.MULTILINE)) == set(machines)
    assert "--mirror=s3://b/pong" in printed


def test_the_first_machine_of_dstack_waits_until_each_other_one_is_set_up(tmp_path):
    wait = yaml.safe_load((ROOT / "docker" / "impala.dstack.yml").read_text())["commands"][-2]
    asked = tmp_path / "asked"
    ssh = f'#!/bin/sh\necho "$3" >> {asked}\n[ "$3" = b ] || [ $(wc -l < {asked}) -ge 4 ]\n'
    for name, script in {"ssh": ssh, "sleep": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DSTACK_NODES_IPS": "a\nb\nc\n"}
    assert run("sh", "-c", wait, DSTACK_NODE_RANK="1", **variables) == (0, "")
    assert not asked.exists()
    assert run("sh", "-c", wait, DSTACK_NODE_RANK="0", **variables) == (0, "")
    assert asked.read_text().split() == ["b", "c", "c", "c"]
