"""The CSV of hosts: what is accepted, and every mistake by row and column."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import ROOT

from launcher.plan import workers_csv

HEADER = "job,ip,tf_port,cuda_visible_devices,ssh_port,ssh_username,ssh_password\n"


@pytest.fixture
def write(tmp_path):
    def _write(content):
        path = tmp_path / "workers.csv"
        path.touch(mode=0o600)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return _write


def test_the_example_is_two_learners_and_two_actors():
    rows, notes = workers_csv.read(str(ROOT / "workers.csv.example"))
    assert [r.job for r in rows] == ["learner"] * 2 + ["actor"] * 2
    assert [r.tf_port for r in rows[:2]] == [0, 0], "two runs of the example do not collide"
    assert {r.ip for r in rows} == {"localhost"}
    assert notes == []


def test_quotes_comments_blank_lines_windows_ends_and_a_byte_order_mark_are_accepted(write):
    path = write(
        b'\xef\xbb\xbf# "hosts, and\r\njob,ip,tf_port,ssh_password\r\n\r\n'
        b'learner, gpu1 ,8001,"a,b ""c"" d"\r\n,,,\r\n# no\r\nactor,cpu1\r\n'
    )
    rows, _ = workers_csv.read(path)
    assert [(r.job, r.ip, r.tf_port, r.line) for r in rows] == [
        ("learner", "gpu1", 8001, 4),
        ("actor", "cpu1", 0, 7),
    ]
    assert rows[0].ssh_password == 'a,b "c" d'
    assert rows[1].ssh_port == 0, "as the SSH configuration says"


def test_a_row_may_say_how_its_processes_are_run(write):
    path = write(
        "job,ip,count,num_envs,workdir,python,setup,learner,ssh_key_path\n"
        'learner,x,,,/a b,/opt/p,"module load a, b; x=""1""",,k\nactor,y,3,8,,,,0,\n'
    )
    (learner, actor), notes = workers_csv.read(path)
    assert (learner.workdir, learner.python, learner.ssh_key_path) == ("/a b", "/opt/p", "k")
    assert learner.setup == 'module load a, b; x="1"'
    assert (actor.count, actor.num_envs, actor.learner) == (3, 8, 0)
    assert (learner.count, learner.num_envs, learner.learner) == (1, 0, -1)
    assert notes == []


def test_an_evaluator_has_a_row_of_its_own(write):
    rows, notes = workers_csv.read(write("job,ip,tf_port\nlearner,x,1\nevaluator,e,5\nactor,a,\n"))
    assert [r.job for r in rows] == ["learner", "evaluator", "actor"]
    assert notes == ["row 3: tf_port 5 is not used: only learners listen"]
    with pytest.raises(
        workers_csv.BadCsv, match=r"'evaluater' is not a job \(did you mean evaluator\?\)"
    ):
        workers_csv.read(write("job,ip\nlearner,x\nevaluater,e\n"))


def test_what_the_csv_says_in_vain_is_noted(write):
    rows, notes = workers_csv.read(
        write("job,ip,tf_port,count\nps,p,8000,\nlearner,x,1,3\nactor,a,9001,\n")
    )
    assert [r.job for r in rows] == ["learner", "actor"]
    assert "row 2: a ps row" in notes[0]
    assert notes[1] == "row 3: count 3 is not used: it is for actors"
    assert "row 4: tf_port 9001 is not used" in notes[2]


@pytest.mark.parametrize(
    ("content", "mistakes"),
    [
        ("", ["its first row must name the columns: job,ip,tf_port"]),
        ("job,ipp\n", ["unknown column 'ipp'; did you mean ip?", "column 'ip' is missing"]),
        ("job,ip,job\n", ["column 'job' occurs twice"]),
        ("job,ip\nactor,a\n", ["no learner: at least one row needs job=learner"]),
        (
            "job,ip,count,learner\nlearner,a,,\nactor,a,0,\nactor,b,1,1\nactor,c,x,\n",
            [
                "row 3, column count: '0' is not a valid number; use 1 to 10000",
                "row 5, column count: 'x' is not a valid number",
                "row 4, column learner: there is no learner 1; the CSV has 1, counted from 0",
            ],
        ),
        ('job,ip,workdir\nlearner,a,"x\ny"\n', ["row 3, column workdir: 'x\\ny' contains a line"]),
        ("job,ip,tf_port\nlearner,,8\n", ["row 2, column ip: '' is not an address"]),
        ("job,ip,tf_port\nlearner,a,8,9\n", ["row 2: 4 cells, but the header has 3"]),
        (
            "job,ip,tf_port,ssh_port\nlernaer,a,0,x\nlearner,localhost,8001,\n"
            'learner,127.0.0.1,8001,\nlearner,b,8001,\nactor,::1,,\nactor,"a,b",,\n',
            [
                "row 2, column job: 'lernaer' is not a job (did you mean learner?)",
                "row 2, column tf_port: '0' is not a valid port",
                "row 2, column ssh_port: 'x' is not a valid port",
                "row 4, column tf_port: row 3 already uses 127.0.0.1:8001",
                "row 6, column ip: '::1' is not an address or host name; for an IPv6 host use",
                "row 7, column ip: 'a,b' is not an address or host name",
            ],
        ),
        (b"job,ip\n\xff\xfe", ["the file is not UTF-8 text"]),
        (
            f"job,ip\nlearner,a\nactor,gpu1..lan\nactor,gpu\u200f1\nactor,{'a' * 100_000}\n"
            f"actor,{'b' * 64}.lan\nactor,-oProxyCommand=x\nactor,a\u2100\nactor,\u05d0b\n",
            [
                "row 3, column ip: 'gpu1..lan' is not an address or host name: label empty",
                "row 4, column ip: 'gpu\\u200f1' contains an invisible character, U+200F ",
                f"row 5, column ip: '{'a' * 60}'... (100,000 characters) is not an address",
                "(68 characters) is not an address or host name: label",
                "row 7, column ip: '-oProxyCommand=x' is not an address or host name",
                "row 8, column ip: 'a\u2100' is not an address or host name: DNS reads it as ",
                "row 9, column ip: '\u05d0b' is not an address or host name: ",
            ],
        ),
        (
            "job,ip,workdir,ssh_password\nlearner,a,/x\x1b[2J,\nactor,a,/y\0z,\n\x07act,a,,\n"
            "actor,a,,pass\x1bword\nactor,a,/\x1cb,\n",
            [
                r"row 2, column workdir: '/x\x1b[2J' contains a control character, U+001B, at",
                r"row 3, column workdir: '/y\x00z' contains a control character, U+0000, at",
                r"row 4, column job: '\x07act' is not a job (did you mean actor?)",
                "row 5, column ssh_password: the value contains a control character, U+001B, at",
                r"row 6, column workdir: '/\x1cb' contains a control character, U+001C, at",
            ],
        ),
        (
            'job,ip,cuda_visible_devices\nlearner,a,0;touch /tmp/x\nactor,a,"0,"\nactor,a,all\n',
            [
                "row 2, column cuda_visible_devices: '0;touch /tmp/x' is not a list of GPUs; use ",
                "row 3, column cuda_visible_devices: '0,' is not a list of GPUs",
                "row 4, column cuda_visible_devices: 'all' is not a list of GPUs",
            ],
        ),
        (
            f'job,ip\nlearner,a\nactor,"{"b" * 140_000}\n',
            ["row 3: field larger than field limit (131072); is a closing quote missing?"],
        ),
        (f"job,ip,{'c' * 900}\n", [f"unknown column '{'c' * 60}'... (900 characters); known: job"]),
    ],
)
def test_every_mistake_is_named_by_row_and_column(write, content, mistakes):
    with pytest.raises(workers_csv.BadCsv) as caught:
        workers_csv.read(write(content))
    said = str(caught.value)
    for mistake in mistakes:
        assert mistake in said
    assert len(said.splitlines()) == len(mistakes)


def test_gpus_are_numbers_uuids_or_none(write):
    for value, read in (
        ("0", "0"),
        ("1, 0", "1,0"),
        ("-1", "-1"),
        ("NoDevFiles", "NoDevFiles"),
        ("GPU-8f2a,MIG-GPU-1-a/0/1", "GPU-8f2a,MIG-GPU-1-a/0/1"),
    ):
        path = write(f'job,ip,cuda_visible_devices\nlearner,a,"{value}"\n')
        assert workers_csv.read(path)[0][0].cuda_visible_devices == read


def test_what_a_row_asks_a_scheduler_for_is_what_a_machine_may_have(write):
    path = write("job,ip,cores,memory,gpus\nlearner,a,8,1.5Gi,2\nactor,b,,,\n")
    learner, actor = workers_csv.read(path)[0]
    assert (learner.num_cores, learner.memory, learner.num_gpus) == (8, "1.5Gi", 2)
    assert (actor.num_cores, actor.memory, actor.num_gpus) == (1, "", 0)
    assert (learner.num_bytes, actor.num_bytes) == (1.5 * 2**30, 0)
    for memory in ("500K", "0", "0.5", "1k", "1000Ki"):
        with pytest.raises(workers_csv.BadCsv, match="memory"):
            workers_csv.read(write(f"job,ip,memory\nlearner,a,{memory}\n"))
    assert workers_csv.read(write("job,ip,memory\nlearner,a,500000k\n"))[0][0].num_bytes == 5e8
    path = write("job,ip,cores,memory,gpus\nlearner,a,2000,99999Gi,900\nactor,b,x,16 GB,\n")
    with pytest.raises(workers_csv.BadCsv) as caught:
        workers_csv.read(path)
    for said in (
        "row 2, column cores: '2000' is not a valid number; use 1 to 1024",
        "row 2, column memory: no machine has '99999Gi' bytes of memory",
        "row 2, column gpus: '900' is not a valid number; use 1 to 64",
        "row 3, column cores: 'x' is not a valid number",
        "row 3, column memory: '16 GB' is not an amount of memory; write bytes as 16Gi",
    ):
        assert said in str(caught.value)


def test_the_path_of_the_csv_cannot_control_the_terminal(tmp_path):
    path = tmp_path / "a\x1b[31m.csv"
    for content in (None, "job\n"):
        if content:
            path.write_text(content)
        with pytest.raises(workers_csv.BadCsv, match=r"^\S*/a\\x1b\[31m\.csv: "):
            workers_csv.read(str(path))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(workers_csv.BadCsv, match=str(path)):
            workers_csv.read(str(path))


def test_a_password_shows_in_no_representation(write):
    rows, _ = workers_csv.read(write(HEADER + "learner,a,1,,,me,hunter2\n"))
    assert rows[0].ssh_password == "hunter2"
    assert "hunter2" not in repr(rows)


def test_passwords_that_others_can_read_are_refused_until_the_mode_is_mended(write):
    path = Path(write(HEADER + "learner,a,1,,,me,hunter2\n"))
    path.chmod(0o640)
    with pytest.raises(workers_csv.BadCsv) as caught:
        workers_csv.read(str(path))
    assert f"other users can read it: chmod 600 {path}" in str(caught.value)
    path.chmod(0o600)
    assert workers_csv.read(str(path))
    path.write_text(HEADER + "learner,a,1,,,me,\n")
    path.chmod(0o644)
    assert workers_csv.read(str(path)), "without a password anybody may read it"


cell = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from([*workers_csv.JOBS, "", "a.b", "0"]),
    st.from_regex(r"[a-z\u00e4\u05d0\u3002\uff0e\u200f.-]{1,70}", fullmatch=True),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(cell, max_size=8), max_size=6))
def test_any_text_is_either_read_or_refused_with_reasons(tmp_path_factory, table):
    text = io.StringIO()
    csv.writer(text).writerows([["learner", "x"], *table])
    _check_that_it_is_read_or_refused(tmp_path_factory, HEADER + text.getvalue())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_either_read_or_refused_with_reasons(tmp_path_factory, content):
    for above in (b"", b"job,ip\nlearner,localhost\n"):
        _check_that_it_is_read_or_refused(tmp_path_factory, above + content)


@pytest.mark.parametrize("more", ["a\n" * 100_000, '"a\n' * 100_000, "," * 1_000_000])
def test_a_file_of_megabytes_is_refused_within_seconds(write, more):
    for above in ("", "job,ip\nactor,"):
        with pytest.raises(workers_csv.BadCsv):
            workers_csv.read(write(above + more))


def _check_that_it_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.touch(mode=0o600)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        rows, _ = workers_csv.read(str(path))
    except workers_csv.BadCsv as mistakes:
        said = str(mistakes)
        assert said.count(str(path)) == len(said.splitlines()) > 0
        assert all(each.isprintable() or each == "\n" for each in said)
        assert all(len(line) < len(str(path)) + 400 for line in said.splitlines())
    else:
        assert any(r.job == "learner" for r in rows)
        assert all(r.job in workers_csv.JOBS and r.ip for r in rows)
        for row in rows:
            # The encoding of `socket.getaddrinfo`.
            assert len(row.ip.encode("idna")) <= 253
