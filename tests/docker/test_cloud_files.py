"""The example files for SkyPilot and dstack: their keys, and the frontend's command in them."""

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
