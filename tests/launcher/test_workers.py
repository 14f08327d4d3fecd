"""The CSV of hosts: what is accepted, and every mistake by row and column."""

import csv
import io

import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import workers

HEADER = "job,ip,tf_port,cuda_visible_devices,ssh_port,ssh_username,ssh_password\n"


@pytest.fixture
def write(tmp_path):
    def _write(content):
        path = tmp_path / "workers.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return _write


def test_the_example_is_two_learners_and_three_actors():
    rows, notes = workers.read(str(ROOT / "workers.csv.example"))
    sets = workers.worker_sets(rows)
    assert [len(s.actors) for s in sets] == [2, 1]
    assert [s.learner.tf_port for s in sets] == [8001, 8002]
    assert notes == []


def test_quotes_comments_blank_lines_windows_ends_and_a_byte_order_mark_are_accepted(write):
    path = write(
        b"\xef\xbb\xbf# hosts\r\njob,ip,tf_port,ssh_password\r\n\r\n"
        b'learner, gpu1 ,8001,"a,b ""c"" d"\r\n,,,\r\n# no\r\nactor,cpu1\r\n'
    )
    rows, _ = workers.read(path)
    assert [(r.job, r.ip, r.tf_port, r.line) for r in rows] == [
        ("learner", "gpu1", 8001, 4),
        ("actor", "cpu1", None, 7),
    ]
    assert rows[0].ssh_password == 'a,b "c" d'
    assert rows[1].ssh_port == 22


def test_actors_are_dealt_to_learners_in_turn(write):
    rows, _ = workers.read(
        write("job,ip,tf_port\n" + "actor,a,\n" * 5 + "learner,x,1\nlearner,y,1\n")
    )
    assert [[a.line for a in s.actors] for s in workers.worker_sets(rows)] == [[2, 4, 6], [3, 5]]


def test_an_evaluator_has_a_row_of_its_own_and_belongs_to_no_learner(write):
    rows, notes = workers.read(write("job,ip,tf_port\nlearner,x,1\nevaluator,e,5\nactor,a,\n"))
    assert [r.job for r in rows] == ["learner", "evaluator", "actor"]
    assert [[a.ip for a in s.actors] for s in workers.worker_sets(rows)] == [["a"]]
    assert notes == ["row 3: tf_port 5 is not used: only learners listen"]
    with pytest.raises(workers.BadCsv, match=r"'evaluater' is no job \(did you mean evaluator\?\)"):
        workers.read(write("job,ip\nlearner,x\nevaluater,e\n"))


def test_what_the_csv_says_in_vain_is_noted(write):
    rows, notes = workers.read(write("job,ip,tf_port\nps,p,8000\nlearner,x,1\nactor,a,9001\n"))
    assert [r.job for r in rows] == ["learner", "actor"]
    assert "row 2: a ps row" in notes[0]
    assert "row 4: tf_port 9001 is not used" in notes[1]


@pytest.mark.parametrize(
    ("content", "mistakes"),
    [
        ("", ["its first row must name the columns: job,ip,tf_port"]),
        ("job,ipp\n", ["unknown column 'ipp'; did you mean ip?", "column 'ip' is missing"]),
        ("job,ip,job\n", ["column 'job' stands twice"]),
        ("job,ip\nactor,a\n", ["no learner: at least one row needs job=learner"]),
        ("job,ip\nlearner,a\n", ["row 2, column tf_port: a learner needs a port"]),
        ("job,ip,tf_port\nlearner,,8\n", ["row 2, column ip: '' is no address"]),
        ("job,ip,tf_port\nlearner,a,8,9\n", ["row 2: 4 cells, and the header names 3"]),
        (
            "job,ip,tf_port,ssh_port\nlearner,a,0,x\nactr,b,,\n",
            [
                "row 2, column tf_port: '0' is no port",
                "row 2, column ssh_port: 'x' is no port",
                "row 3, column job: 'actr' is no job (did you mean actor?)",
            ],
        ),
        (
            "job,ip,tf_port\nlearner,a,8001\nlearner,b,8001\nlearner,a,8001\n",
            ["row 4, column tf_port: a:8001 is taken by row 2"],
        ),
        (b"job,ip\n\xff\xfe", ["this is no UTF-8 text"]),
    ],
)
def test_every_mistake_is_named_by_row_and_column(write, content, mistakes):
    with pytest.raises(workers.BadCsv) as caught:
        workers.read(write(content))
    said = str(caught.value)
    for mistake in mistakes:
        assert mistake in said
    assert len(said.splitlines()) == len(mistakes)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(workers.BadCsv, match=str(path)):
            workers.read(str(path))


def test_a_password_shows_in_no_representation(write):
    rows, _ = workers.read(write(HEADER + "learner,a,1,,,me,hunter2\n"))
    assert rows[0].ssh_password == "hunter2"
    assert "hunter2" not in repr(rows)


cell = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(cell, max_size=8), max_size=6))
def test_any_text_is_either_read_or_refused_with_reasons(tmp_path_factory, table):
    text = io.StringIO()
    csv.writer(text).writerows(table)
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(HEADER + text.getvalue(), encoding="utf-8")
    try:
        rows, _ = workers.read(str(path))
    except workers.BadCsv as mistakes:
        said = str(mistakes)
        assert said.count(str(path)) == len(said.splitlines()) > 0
    else:
        assert any(r.job == "learner" for r in rows)
        assert sum(1 + len(s.actors) for s in workers.worker_sets(rows)) == len(rows)
