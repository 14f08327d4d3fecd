"""The comparison of learners: it comes before TensorFlow is loaded, and names a difference."""

import re
import subprocess
import sys

import pytest
from in_threads import together
from processes import ROOT, free_port, needs_horovod, run

from impala_mm.config.settings import Config
from impala_mm.distributed import agreement, mpi
from impala_mm.distributed.agreement import Agreement, SettingsDiffer
from impala_mm.runtime.run_token import TokenFile
from impala_mm.runtime.starter import _VARIABLES

MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", 1)
LEARNER = (sys.executable, ROOT / "experiment.py", "--job_name=learner", "--level_name=catch")


def _reach(size, agreement_of):
    """Return what each of `size` learners finds with the agreement `agreement_of(rank)`."""
    return together(size, lambda group: agreement_of(group.rank).reach(group.gather))


@pytest.mark.parametrize(
    ("addresses", "rates", "said"),
    [
        (["b:1", "a:1", "c:1"], [0.1] * 3, ""),
        (["a:1", "b:1", "a:1"], [0.1] * 3, "learners 0 and 2 were both given a:1"),
        (["a:1", "b:1", "c:1"], [0.1, 0.2, 0.1], "--learning_rate differ: 0.1 on 0 and 2, 0.2 on"),
    ],
)
def test_learners_that_agree_know_all_addresses_and_others_are_refused_on_all_alike(
    addresses, rates, said
):
    """Flags that belong to one process, such as its bind address, may differ."""

    def of(rank):
        config = Config(learning_rate=rates[rank], bind_address=f"x:{rank}")
        return Agreement(config, 6, addresses[rank])

    for found in _reach(3, of):
        if said:
            assert isinstance(found, SettingsDiffer)
            assert said in str(found)
        else:
            assert found == addresses, "in the order of ranks"


@pytest.mark.parametrize(
    ("name", "versions"),
    [("numpy", ("2.4.6", "2.5")), ("tensorflow", ("2.21.0", "2.20.0")), ("horovod", ("0.1", None))],
)
def test_versions_that_differ_are_refused_before_the_flags_that_they_may_explain(
    monkeypatch, name, versions
):
    def of(rank):
        installed = {"python": "3.11.7", "tensorflow-cpu": "2.21.0", name: versions[rank]}
        monkeypatch.setattr(agreement.provenance, "versions", lambda: installed)
        return Agreement(Config(learning_rate=0.1 * (1 + rank)), 6)

    agreements = [of(0), of(1)]
    for found in _reach(2, lambda rank: agreements[rank]):
        first, second = versions
        assert f"versions of {name} differ: {first} on 0, {second} on 1;" in str(found)


def test_patches_of_python_and_builds_of_tensorflow_may_differ(monkeypatch):
    def of(python, tensorflow):
        installed = {"python": python, tensorflow: "2.21.0"}
        monkeypatch.setattr(agreement.provenance, "versions", lambda: installed)
        return Agreement(Config(), 6, python)

    agreements = [of("3.11.7", "tensorflow"), of("3.11.9", "tensorflow-cpu")]
    found = _reach(2, lambda rank: agreements[rank])
    assert found == [["3.11.7", "3.11.9"]] * 2


def test_token_files_that_differ_are_refused_with_the_command_that_copies_them():
    """What is compared is a hash; the content never leaves its host."""
    digests, hosts = ["a", "b", "a", "b"], ["one", "two", "one", "three"]

    def of(rank):
        return Agreement(
            Config(), 6, f"x:{rank}", "", TokenFile(hosts[rank], f"/{rank}", digests[rank])
        )

    for found in _reach(4, of):
        assert "token files differ" in str(found)
        assert "(on one: scp /0 two:/1 && scp /0 three:/3)" in str(found)
    hosts = ["one"] * 4
    for found in _reach(4, of):
        assert "token files differ: /0 and /1 on one; give" in str(found)
    digests = ["a"] * 4
    assert _reach(4, of) == [[f"x:{rank}" for rank in range(4)]] * 4


def test_protocols_that_differ_are_refused():
    for found in _reach(2, lambda rank: Agreement(Config(), 5 + rank)):
        assert "versions of the protocol differ: 5 on 0, 6 on 1;" in str(found)


def test_a_property_that_only_some_ranks_have_is_refused_on_all_of_them():
    settings = [{"emulator": "0.11"}, {"emulator": "0.11", "network": "MLPAgent"}]
    for of_all in (settings, settings[::-1]):
        with pytest.raises(SettingsDiffer, match=r"network differ: (None|MLPAgent) on 0"):
            agreement.check_equal(of_all)


def test_one_learner_imports_neither_mpi4py_nor_tensorflow_to_agree_with_itself():
    code = (
        "import sys; from impala_mm.config.settings import Config\n"
        "from impala_mm.distributed.agreement import Agreement\n"
        "one = Agreement(Config(), 6, 'a:1'); one.reach_through_mpi(print)\n"
        "assert one.reach(lambda value, name: [value]) == ['a:1']\n"
        "assert not {'mpi4py', 'tensorflow', 'horovod'} & set(sys.modules)"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.fixture
def two_ranks(monkeypatch):
    """Set the environment of rank 0 of 2 under Open MPI."""
    for names in _VARIABLES:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("HOROVOD_CONTROLLER", raising=False)
    for name, value in zip(_VARIABLES[0], "2020", strict=True):
        monkeypatch.setenv(name, value)


def test_several_learners_without_mpi4py_are_refused_with_the_command_that_installs_it(
    two_ranks, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(SystemExit) as ended:
        Agreement(Config()).reach_through_mpi(print)
    assert ended.value.code == 2
    assert "install it with `make horovod`" in capsys.readouterr().err


def test_under_gloo_the_learners_are_compared_through_horovod(two_ranks, monkeypatch):
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    Agreement(Config()).reach_through_mpi(print)
    assert not mpi.is_used()


@needs_horovod
def test_a_launcher_of_another_mpi_is_refused():
    """Otherwise every process would train alone."""
    names = dict(zip(_VARIABLES[0], "2020", strict=True))
    addresses = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    code, printed = run(*LEARNER, f"--learner_hosts={addresses}", **names)
    assert code == 2, printed
    assert "the launcher started 2 processes, but MPI sees 1" in printed
    assert "Traceback" not in printed


def _start_two(*flags_of_each):
    """Start two learners under one mpirun.

    Return the exit code, what they printed, and the modules that they imported.
    """
    contexts = [["-np", 1, *LEARNER, *flags] for flags in flags_of_each]
    code, printed = run(*MPIRUN, *contexts[0], ":", *contexts[1], PYTHONPROFILEIMPORTTIME="1")
    modules = set(re.findall(r"^import time: .*\| +(\S+)$", printed, re.MULTILINE))
    # mpirun joins the ranks' output piece by piece: an error may stand within another's line.
    lines = [x for x in printed.splitlines() if not x.startswith("import time:") or "error:" in x]
    said = "\n".join(lines)
    return code, said, modules


@needs_horovod
def test_a_difference_is_refused_once_before_tensorflow_is_loaded_and_leaves_no_folder(tmp_path):
    flags = [f"--logdir={tmp_path / 'run'}", f"--learner_hosts=127.0.0.1:{free_port()}"]
    code, said, modules = _start_two([*flags, "--batch_size=2"], [*flags, "--batch_size=4"])
    assert code == 2, said
    sentence = "[learner 0] error: the learners' --batch_size differ: 2 on 0, 4 on 1; give all of"
    assert said.count(sentence) == said.count("error:") == 1, said
    assert "mpi4py.MPI" in modules
    assert not {"tensorflow", "horovod"} & {name.partition(".")[0] for name in modules}
    assert not (tmp_path / "run").exists()


@needs_horovod
def test_another_token_file_is_refused_before_tensorflow_is_loaded_and_is_not_printed(tmp_path):
    flags = [f"--logdir={tmp_path / 'run'}", f"--learner_hosts=127.0.0.1:{free_port()}"]
    files = [tmp_path / name for name in "ab"]
    code, said, modules = _start_two(*[[*flags, f"--token_file={file}"] for file in files])
    assert code == 2, said
    assert f"error: the learners' token files differ: {files[0]} and {files[1]} on " in said
    assert "tensorflow" not in modules
    assert files[0].read_text().partition("\n")[0] not in said


@pytest.mark.slow
@needs_horovod
def test_under_gloo_a_rehearsal_refuses_what_differs_too():
    command = f"{sys.executable} experiment.py --mode=rehearsal --learning_rate=0.1$HOROVOD_RANK"
    code, printed = run("horovodrun", "--gloo", "-np", 2, "sh", "-c", command)
    assert code != 0, printed
    said = "error: the learners' --learning_rate differ: 0.1 on 0, 0.11 on 1"
    assert printed.count(said) == 1, printed
