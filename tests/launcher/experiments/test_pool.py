"""How trials share the rows of a CSV."""

from launcher.experiments.file import Needs
from launcher.experiments.pool import Pool, rows_here, write_csv
from launcher.plan import workers_csv

CSV = """job,ip,cuda_visible_devices,count,ssh_username
learner,h1.invalid,0,,
learner,h1.invalid,1,,
learner,h2.invalid,,,bob
actor,h1.invalid,,2,
actor,h2.invalid,,3,bob
"""


def make(tmp_path, needs):
    path = tmp_path / "all.csv"
    path.write_text(CSV)
    return Pool(workers_csv.read(str(path))[0], needs)


def places(rows):
    return [
        f"{row.job} {row.ip.partition('.')[0]} {row.cuda_visible_devices}".strip() for row in rows
    ]


def test_trials_take_the_rows_that_others_do_not_have(tmp_path):
    pool = make(tmp_path, Needs(learners=1, actors=2))
    first = pool.take([])
    second = pool.take([first])
    assert places(first) == ["learner h1 0", "actor h1", "actor h1"]
    assert places(second) == ["learner h2", "actor h2", "actor h2"]
    assert pool.take([first, second]) == []  # one actor is left
    pool.lost = {"h1.invalid"}
    assert pool.take([(), second]) == []
    pool.lost = set()
    assert places(pool.take([(), second])) == ["learner h1 0", "actor h1", "actor h1"]


def test_learners_and_gpus_stand_on_one_host_if_they_can(tmp_path):
    pool = make(tmp_path, Needs(learners=2, actors=3, gpus=1))
    assert places(pool.take([])) == [
        "learner h1 0",
        "learner h1 1",
        "actor h1",
        "actor h1",
        "actor h2",
    ]
    assert make(tmp_path, Needs(learners=3, gpus=1)).why_too_small() == (
        "a trial needs 3 rows of learners with 1 GPUs, and the CSV has 2"
    )
    assert "6 actors, and the CSV has 5" in make(tmp_path, Needs(actors=6)).why_too_small()


def test_cores_limit_the_trials_of_a_host(tmp_path):
    pool = make(tmp_path, Needs(actors=0, cores=4))
    pool.cores = {"h1.invalid": 7, "bob@h2.invalid": 4}
    first = pool.take([])
    assert places(first) == ["learner h1 0"]
    second = pool.take([first])
    assert places(second) == ["learner h2"]
    assert pool.take([first, second]) == []
    pool.cores = {"h1.invalid": 3, "bob@h2.invalid": 2}
    assert "4 cores, and no learner's host has more than 3" in pool.why_too_small()
    pool = make(tmp_path, Needs(actors=0, cores=4))
    first = pool.take([])
    pool.cores = {"h1.invalid": 7}  # as when a host is reached only now
    second = pool.take([first])
    assert places(second) == ["learner h2"]
    assert places(pool.take([second])) == ["learner h1 0"]


def test_a_host_that_is_gone_from_the_csv_gets_no_more_trials(tmp_path):
    pool = make(tmp_path, Needs(actors=1))
    (tmp_path / "old.csv").write_text(CSV.replace("h1", "gone"))
    rows = workers_csv.read(str(tmp_path / "old.csv"))[0]
    taken = [[rows[0], rows[3]]]
    for _ in range(3):
        taken.append(pool.take(taken))
    assert {row.ip for one in taken[1:] for row in one} == {"h1.invalid", "h2.invalid"}
    assert pool.take(taken) == pool.take(taken[1:]) == []


def test_ports_of_one_address_are_hosts_of_their_own_and_passwords_may_change(tmp_path):
    path = tmp_path / "all.csv"
    path.touch(0o600)
    rows = "learner,h.invalid,{0},old\nactor,h.invalid,{0},old\n"
    path.write_text("job,ip,ssh_port,ssh_password\n" + rows.format(2201) + rows.format(2202))
    read = workers_csv.read(str(path))[0]
    path.write_text(path.read_text().replace("old", "new"))
    pool = Pool(workers_csv.read(str(path))[0], Needs(actors=1))
    assert pool.host_ids == ["h.invalid:2201", "h.invalid:2202"]
    pool.lost = {"h.invalid:2201"}
    rows = pool.take([])
    assert [row.ssh_port for row in rows] == [2202, 2202]
    pool.lost = set()
    assert pool.take([read[:2], rows]) == []
    assert [row.ssh_password for row in pool.take([rows])] == ["new", "new"]


def test_the_csv_of_a_trial_has_the_rows_it_took(tmp_path):
    pool = make(tmp_path, Needs(actors=2))
    first = pool.take([])
    rows = pool.take([first])
    path = tmp_path / "trial.csv"
    write_csv(path, rows)
    assert path.stat().st_mode & 0o777 == 0o600
    read, _ = workers_csv.read(str(path))
    assert places(read) == places(rows)
    assert {row.ssh_username for row in read} == {"bob"}
    assert pool.take([first, read]) == []  # as after a restart of the experiment's process
    here = Pool(rows_here(Needs(actors=1), 2), Needs(actors=1))
    first = here.take([])
    second = here.take([first])
    assert (len(first), len(second), here.take([first, second])) == (2, 2, [])
