"""Grading a class: nothing lost, nothing unearned, whatever interrupts it."""

import json
import os
import resource
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
import nbformat
from sqlalchemy import event
from sqlalchemy.engine import Engine

from llmcourse.course import CourseError
from llmcourse.grading import autograde, examiner, grader, stock
from llmcourse.grading.autograde import FAILED, GRADED, WAITING, Counts
from llmcourse.grading.grader import LocalPool, Outcome

HERE = runpy.run_path(str(Path(__file__).with_name("classroom.py")))
prepared, classroom, pool, known, recorded = (
    HERE[n] for n in ("prepared", "classroom", "pool", "known", "recorded")
)
NAME, SLUG, WORK, EARNED = HERE["NAME"], HERE["SLUG"], HERE["WORK"], HERE["GRADED"]
DOUBLE, TRIPLE = HERE["DOUBLE"], HERE["TRIPLE"]


def key_of(learner):
    return f"{learner}/{NAME}/{SLUG}"


def states(room):
    return {student: row.state for student, row in room.rows().items()}


@pytest.fixture
def graded(classroom, recorded, known):
    """The whole class, graded as in the undisturbed run."""
    classroom.whole_class()
    assert classroom.run(recorded) == known[2]
    return classroom


# --- What a run does.


def test_every_submission_ends_graded_or_failed_with_its_reason(graded, known):
    assert known[2] == Counts(graded=len(EARNED), failed=2)
    assert graded.scores() == EARNED
    rows = graded.rows()
    assert {n for n, row in rows.items() if row.state == GRADED} == set(EARNED)
    assert rows["fay"].state == rows["hal"].state == FAILED
    assert rows["fay"].why.startswith("the file is not JSON")
    assert rows["hal"].why == "sample.ipynb was not handed in"
    assert rows["eve"].notes == "double-check was missing and put back"
    assert "ended early" in rows["gus"].notes or rows["gus"].score == 0
    assert not (graded.root / "autograded" / "fay").exists()


def test_what_the_learner_printed_stays_for_a_human_grader(graded):
    text = (graded.root / "autograded" / "dot" / NAME / f"{SLUG}.ipynb").read_text()
    assert "not JSON" not in text and "hidden_input_double" in text


def test_nothing_is_graded_twice(graded, recorded):
    """What failed is tried again."""
    before, seen = graded.table(), []
    recorded.on = seen.append
    assert graded.run(recorded) == Counts(failed=2, before=len(EARNED))
    assert graded.table() == before
    assert len(seen) == 1


@pytest.mark.parametrize("what", ["work", "stamp", "release", "salt", "data", "again"])
def test_what_the_grades_depend_on_makes_them_due_again(graded, recorded, what):
    due = {"ada"}
    if what == "work":
        graded.hand_in("ada", {"double": DOUBLE, "triple": TRIPLE + "\n"})
    elif what == "stamp":
        graded.hand_in("ada", None, "2026-11-02 10:00:00 UTC")
    else:
        due = set(EARNED)
    if what == "release":
        with graded.api.gradebook as book:
            notebook = book.find_notebook(SLUG, NAME)
            next(c for c in notebook.source_cells if c.name == "double").source += "\n"
            book.db.commit()
    elif what == "salt":
        (graded.root / ".course_secret").write_text("another\n")
    elif what == "data":
        (graded.root / "solutions" / NAME / "data").mkdir()
        (graded.root / "solutions" / NAME / "data" / "words.txt").write_text("one")
    if what != "again":
        assert {n for n, state in states(graded).items() if state == WAITING} >= due
    counts = graded.run(recorded, again=what == "again")
    assert counts.graded == len(due)
    assert counts.before == len(EARNED) - len(due)
    assert {n for n, state in states(graded).items() if state == GRADED} == set(EARNED)


def anew(room):
    """The course with a gradebook that knows the release and no grade."""
    stock.must(room.api.generate_assignment(NAME, force=True), "generating")


@pytest.mark.parametrize("how", ["lost", "another", "older", "removed"])
def test_what_this_gradebook_has_no_grade_of_is_due_again(graded, recorded, known, how):
    """The journal alone would call it graded, and its scores would be empty, or old ones."""
    file, due = graded.root / "gradebook.db", set(EARNED)
    if how == "lost":
        file.rename(graded.root / "lost.db")
        anew(graded)
    elif how == "another":
        graded.setting(f'c.CourseDirectory.db_url = "sqlite:///{graded.root}/another.db"')
        anew(graded)
    elif how == "older":
        shutil.copy(file, graded.root / "older.db")
        graded.hand_in("ada", {"double": DOUBLE, "triple": TRIPLE + "\n"})
        assert graded.run(recorded).graded == 1
        shutil.copy(graded.root / "older.db", file)
        due = {"ada"}
    else:
        with graded.api.gradebook as book:
            book.remove_submission(NAME, "ada")
        due = {"ada"}
    rows = graded.rows()
    assert {n for n, row in rows.items() if row.state == WAITING} == due
    assert rows["ada"].why.startswith(autograde.ELSEWHERE)
    assert rows["ada"].score == (8 if how == "older" else None)
    counts = graded.run(recorded)
    assert (counts.graded, counts.before) == (len(due), len(EARNED) - len(due))
    assert graded.table() == known[1] and states(graded)["ada"] == GRADED


@pytest.mark.parametrize("gone", ["notebook", "folder", "all"])
def test_what_has_lost_its_graded_notebook_is_due_again(graded, recorded, known, gone):
    """Feedback is made of it: without it, the learner would get none, and nobody a word."""
    path = graded.root / "autograded" / "ada" / NAME / f"{SLUG}.ipynb"
    mark_by_hand(graded)
    if gone == "notebook":
        path.unlink()
    else:
        shutil.rmtree(path.parents[2] if gone == "all" else path.parent)
    due = set(EARNED) if gone == "all" else {"ada"}
    rows = graded.rows()
    assert {n for n, row in rows.items() if row.state == WAITING} == due
    assert rows["ada"].why == f"{autograde.ELSEWHERE}; the earlier grade is kept"
    counts = graded.run(recorded)
    assert (counts.graded, counts.before) == (len(due), len(EARNED) - len(due))
    assert path.is_file() and states(graded)["ada"] == GRADED
    assert graded.scores() == EARNED | {"ada": (4, 3)}  # by hand: 2, and 1 extra


def test_what_the_gradebook_holds_is_asked_for_once(graded, recorded):
    said = []

    def note(_, __, statement, *___):
        said.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        graded.rows()
        graded.run(recorded)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    asked = [
        x for x in said if x.startswith("SELECT") and f"JOIN {autograde.DIGESTS.name}" in x
    ]
    assert len(asked) == 2  # by the report, by the run


def test_only_the_named_learners_are_graded(classroom, recorded):
    classroom.whole_class()
    assert classroom.run(recorded, students=["ben", "ada"]) == Counts(graded=2)
    assert set(classroom.scores()) == {"ada", "ben"}
    assert states(classroom)["cy"] == WAITING
    with pytest.raises(CourseError, match="zoe: nothing handed in for 04_sample"):
        classroom.run(recorded, students=["ada", "zoe"])


def test_a_class_that_handed_in_nothing_is_graded_at_once(classroom, recorded, capsys):
    assert classroom.run(recorded) == Counts()
    assert capsys.readouterr().out == ""


def test_the_progress_bar_names_the_exercise(classroom, recorded, capsys):
    classroom.whole_class()
    autograde.run(classroom.root, NAME, pool=recorded)
    assert f"autograding {NAME}: 100%" in capsys.readouterr().out


def test_what_has_no_release_says_what_to_do(classroom, recorded):
    with pytest.raises(CourseError, match="the gradebook has no 09_none: run nbgrader"):
        autograde.run(classroom.root, "09_none", pool=recorded, progress=False)


# --- A failure is no zero.


def test_a_failed_resubmission_keeps_the_earlier_grade_and_says_so(graded, recorded):
    graded.hand_in("ada", WORK["fay"][0])
    why = recorded.outcomes[key_of("fay")].why
    recorded.outcomes[key_of("ada")] = Outcome(key_of("ada"), why=why)
    assert graded.run(recorded).failed == 3
    assert graded.scores()["ada"] == (4, 4)
    row = graded.rows()["ada"]
    assert (row.state, row.score) == (FAILED, 8)
    assert row.why.endswith("; the earlier grade is kept")


def test_an_empty_resubmission_after_a_good_one_earns_nothing(graded, pool):
    """nbgrader keeps the score of a check that was deleted."""
    empty = b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    graded.hand_in("ada", empty)
    assert graded.run(pool, students=["ada"]).graded == 1
    assert graded.scores()["ada"] == (0, 0)
    assert "double-check was missing and put back" in graded.rows()["ada"].notes


@pytest.mark.parametrize("error", [RuntimeError("odd"), ValueError("odd")])
def test_grades_that_cannot_be_stored_are_a_failure_and_leave_nothing(
    classroom, recorded, monkeypatch, error
):
    def fails(*_):
        raise error

    classroom.whole_class()
    monkeypatch.setattr(autograde.AssignLatePenalties, "preprocess", fails)
    assert classroom.run(recorded) == Counts(failed=len(WORK))
    assert classroom.scores() == {}
    assert "cannot be stored" in classroom.rows()["ada"].why
    monkeypatch.undo()
    assert classroom.run(recorded).graded == len(EARNED)
    assert classroom.scores() == EARNED


def test_a_grader_without_outcome_is_a_failure(classroom, known):
    classroom.whole_class()
    wanted = {**known[0]}
    dead = Outcome(key_of("ben"), why="the process that grades it died", broken=True)
    wanted[dead.key] = dead
    assert classroom.run(HERE["Recorded"](wanted)) == replace(known[2], graded=6 - 1, failed=3)
    assert "ben" not in classroom.scores()


# --- As nbgrader itself.


def without_run(rows):
    """nbgrader notes that something was submitted also when it cannot grade it."""
    return [row for row in rows if row[0] in EARNED]


@pytest.fixture(scope="module")
def by_nbgrader(prepared, pool, tmp_path_factory):
    """The class graded by nbgrader's own `autograde`, with late penalties; twice each."""
    root = tmp_path_factory.mktemp("nbgrader") / "course"
    shutil.copytree(prepared, root)
    room = HERE["Classroom"](root).whole_class()
    prepare(room)
    for learner in EARNED:
        room.api.autograde(NAME, learner)
    first = room.table()
    mark_by_hand(room)
    for learner in ("ada", "ben"):
        room.api.autograde(NAME, learner)
    return first, room.table()


def prepare(room):
    room.setting('c.LateSubmissionPlugin.penalty_method = "zero"')
    room.due("2026-11-01T12:00:00")
    room.hand_in("dot", None, "2026-11-01 12:00:01 UTC")
    room.hand_in("cy", None, "2026-11-02 12:00:00 UTC")


def mark_by_hand(room):
    with room.api.gradebook as book:
        found = book.find_submission_notebook(SLUG, NAME, "ada")
        grade = next(g for g in found.grades if g.name == "triple-check")
        grade.manual_score, grade.extra_credit, grade.needs_manual_grade = 2, 1, False
        found.comments[0].manual_comment = "seen"
        book.db.commit()


def test_the_gradebook_is_as_after_nbgraders_own_autograde(classroom, known, by_nbgrader):
    classroom.whole_class()
    prepare(classroom)
    classroom.run(HERE["Recorded"](known[0]))
    assert classroom.table() == by_nbgrader[0]
    penalties = {row[0]: row[3] for row in classroom.table()}
    assert penalties["dot"] == 4 and penalties["ada"] is None
    row = classroom.rows()["dot"]
    assert (row.score, row.late_penalty, row.max_score) == (0, 4, 8)


def test_marks_given_by_hand_survive_as_with_nbgrader(classroom, known, by_nbgrader):
    classroom.whole_class()
    prepare(classroom)
    classroom.run(HERE["Recorded"](known[0]))
    mark_by_hand(classroom)
    classroom.run(HERE["Recorded"](known[0]), students=["ada", "ben"], again=True)
    assert classroom.table() == by_nbgrader[1]
    assert classroom.scores()["ada"] == (4, 3)
    assert classroom.rows()["ada"].needs_manual_grade


def test_nbgraders_own_commands_go_on_from_here(graded):
    """Feedback, and a second look by nbgrader, on what this graded."""
    assert graded.api.generate_feedback(NAME, "ada")["success"]
    assert (graded.root / "feedback" / "ada" / NAME / f"{SLUG}.html").is_file()
    assert set(graded.api.get_autograded_students(NAME)) == set(EARNED)


def test_feedback_is_handed_out_through_the_exchange(classroom, recorded):
    api = classroom.api
    assert api.release_assignment(NAME)["success"]
    classroom.hand_in("ada", WORK["ada"][0], "2026-11-01 10:00:00 UTC")
    (classroom.folder("ada") / "submission_secret.txt").write_text("0123abcd")
    classroom.run(recorded)
    assert api.generate_feedback(NAME)["success"]
    done = api.release_feedback(NAME)
    assert done["success"], done["log"]
    assert len(list((classroom.root / "exchange").rglob("feedback/*.html"))) == 1


# --- Whole or not at all.


def dies_at(room, step, recorded):
    """Run in a child that kills itself at its `step`-th word to gradebook or journal."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = 0

    def count(*_):
        nonlocal said
        said += 1
        if said == step:
            os.kill(os.getpid(), signal.SIGKILL)

    note = autograde.Journal.note
    try:
        for name in ("before_cursor_execute", "commit"):
            event.listen(Engine, name, count)
        autograde.Journal.note = lambda *args: (count(), note(*args), count())
        room.run(recorded)
        os._exit(0)
    finally:
        os._exit(1)


def assert_whole(room):
    """Grades all or none, and what the journal calls graded has its grades."""
    table, scores = room.table(), room.scores()
    assert all(scores[n] == EARNED[n] for n in scores), scores
    assert all(grade[1] is not None for row in table for grade in row[4])
    with autograde.Journal(room.root) as journal:
        found = journal.file.execute("SELECT student FROM submissions WHERE state='graded'")
        assert {student for (student,) in found} <= set(scores)


@pytest.mark.parametrize("start", [1, 2, 3])
def test_killed_at_any_word_and_resumed_the_grades_are_those_of_an_undisturbed_run(
    classroom, recorded, known, start
):
    classroom.whole_class()
    step, deaths = 7 * start, 0
    while (code := dies_at(classroom, step, recorded)) != 0:
        assert code == -signal.SIGKILL
        assert_whole(classroom)
        deaths, step = deaths + 1, step + 7 + start
        assert deaths < 100
    assert deaths > 3
    assert classroom.table() == known[1]
    assert not list(classroom.root.rglob("tmp*"))[deaths:]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_between_two_cells_leaves_nothing_of_the_submission(
    classroom, recorded, known, monkeypatch, interrupt
):
    said = []
    add = autograde.SaveAutoGrades._add_score

    def interrupted(self, cell, resources):
        said.append(cell)
        add(self, cell, resources)
        if len(said) == 5:
            raise interrupt

    classroom.whole_class()
    monkeypatch.setattr(autograde.SaveAutoGrades, "_add_score", interrupted)
    if interrupt is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            classroom.run(recorded)
        assert set(classroom.scores()) == {"ada", "ben"}
    else:
        assert classroom.run(recorded).failed == 3
        assert "cy" not in classroom.scores()
    assert_whole(classroom)
    monkeypatch.undo()
    classroom.run(recorded)
    assert classroom.table() == known[1]


def command(room, *more):
    """`llmcourse autograde` as from a terminal, in a process group of its own.

    Tests that a script runs in the background ignore Ctrl-C, and so would what they start.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "llmcourse.cli", "autograde", "04", "--workers", "1", *more],
        cwd=room.root, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE["ROOT"]), "TMPDIR": str(room.root.parent)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def wait_for(what):
    """Until it is true; a minute at most."""
    for _ in range(600):
        if what():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def ended(room):
    """How many submissions the journal knows the end of."""
    path = room.root / autograde.JOURNAL
    if not path.is_file():
        return 0
    with sqlite3.connect(path) as file:
        try:
            return file.execute("SELECT count(*) FROM submissions").fetchone()[0]
        except sqlite3.OperationalError:
            return 0


def descendants(pid):
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [p for c in map(int, children) for p in (c, *descendants(c))]


def alive(pid):
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_stopped_killed_and_resumed_in_earnest(classroom, pool, known):
    """Ctrl-C exits 130 and takes its graders along, and so does the coordinator's death."""
    classroom.whole_class()
    stopped = command(classroom)
    wait_for(lambda: ended(classroom) >= 1)
    family = descendants(stopped.pid)
    os.killpg(stopped.pid, signal.SIGINT)
    _, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, err
    assert err.decode().strip().splitlines()[-1] == "llmcourse: stopped"
    assert b"Traceback" not in err
    wait_for(lambda: not any(map(alive, family)))
    assert_whole(classroom)

    there = ended(classroom)
    killed = command(classroom)
    wait_for(lambda: ended(classroom) > there)
    family = descendants(killed.pid)
    killed.kill()
    killed.communicate()
    wait_for(lambda: not any(map(alive, family)))
    assert not list(classroom.root.parent.glob("grader-*"))
    assert_whole(classroom)

    classroom.run(pool)
    assert classroom.table() == known[1]


def kills(room, pool, victim):
    """Run the class; when the second outcome is there, `victim` is killed."""
    seen = []

    def graders(jobs):
        for outcome in pool(jobs):
            seen.append(outcome)
            if len(seen) == 2:
                threading.Timer(0.05, victim).start()
            yield outcome

    return room.run(graders)


def keeper_of(one):
    """The process that forks submissions: bubblewrap's child."""
    family = descendants(one._process.pid)
    return next(p for p in family if b"keeper" in Path(f"/proc/{p}/cmdline").read_bytes())


@pytest.mark.parametrize("who", ["grader", "keeper"])
def test_a_grader_or_its_keeper_that_is_killed_costs_nothing(classroom, pool, known, who):
    classroom.whole_class()
    [one] = pool.graders
    assert one._process is not None and one._process.poll() is None

    def victim():
        os.kill(one._process.pid if who == "grader" else keeper_of(one), signal.SIGKILL)

    assert kills(classroom, pool, victim) == known[2]
    assert classroom.table() == known[1]


# --- What the graders are given, and give.


def job(key, text=b"", **more):
    return grader.Job(key, text, (), None, {}, "salt", **more)


class Fake:
    """A grader that takes one job at a time, and does with it what its name says."""

    def __init__(self):
        self.job = self.pipe = None
        self.is_late = False

    def give(self, one):
        self.job = one

    def take(self):
        one, self.job = self.job, None
        return Outcome(one.key, notebook="{}") if "good" in one.key else Outcome(
            one.key, why="it died", broken=True)  # fmt: skip

    def stop(self):
        pass


def test_a_submission_that_kills_its_graders_is_set_aside_after_three():
    pool, given = LocalPool(2), []
    pool.graders = [Fake(), Fake()]
    for one in pool.graders:
        give = one.give
        one.give = lambda job, give=give: (given.append(job.key), give(job))
    names = ["good 1", "bad", "good 2", "good 3"]
    outcomes = {o.key: o for o in pool(map(job, names))}
    assert set(outcomes) == set(names) and len(given) == 6
    assert outcomes["bad"].broken and not outcomes["good 3"].broken


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(workers):
    with pytest.raises(CourseError, match=f"workers: got {workers}, needs at least 1"):
        LocalPool(workers)


def test_an_error_of_our_own_is_told_and_the_grader_lives():
    """A notebook with a damaged template: no submission's fault."""
    with LocalPool(1) as graders:
        [first] = graders([replace(job("one", b'{"nbformat": 4}'), cells=3)])
        process = graders.graders[0]._process
        [second] = graders([job("two", b"{")])
        assert graders.graders[0]._process is process
    assert second.why.startswith("the file is not JSON")
    assert first.why


def test_a_pool_leaves_no_process_and_no_file():
    with LocalPool(1) as graders:
        list(graders([job("one", b"{")]))
        pid, folder = graders.graders[0]._process.pid, Path(graders.graders[0]._folder)
        assert alive(pid) and folder.is_dir()
    assert not alive(pid) and not folder.exists()


def test_a_notebook_that_takes_too_much_memory_fails_by_itself():
    """The grader goes on, and so does the machine."""
    with LocalPool(1) as graders:
        list(graders([job("one", b"{")]))
        process, data = graders.graders[0]._process, resource.RLIMIT_DATA
        soft, hard = resource.prlimit(process.pid, data)
        assert soft == grader.MEMORY < 2**63 and hard == resource.getrlimit(data)[1]
        status = Path(f"/proc/{process.pid}/status").read_text().split()
        held = int(status[status.index("VmData:") + 1]) << 10
        resource.prlimit(process.pid, data, (held + 20 * 2**20, hard))
        text = b'{"nbformat": 4, "x": [' + b"{}," * 480_000 + b"{}]}"  # 40 MB of objects
        [broken] = graders([job("two", text)])
        assert broken.broken and "MemoryError" in broken.why
        resource.prlimit(process.pid, data, (soft, hard))
        [fine] = graders([job("three", text)])
        assert fine.why.startswith("the notebook is damaged")
        assert graders.graders[0]._process is process


def nb_of(cells):
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_beyond_a_limit_what_cells_show_is_one_line_and_a_note(classroom, pool):
    """Each cell may show almost 3 MB; the notebook, and the coordinator, stay small."""
    raw = json.loads(
        classroom.notebook({"double": DOUBLE, "triple": "print('own')\n" + TRIPLE})
    )
    loud = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    show = "print('a' * 1_900_000)"
    raw["cells"][1:1] = [loud | {"id": f"n{i}", "source": show} for i in range(14)]
    classroom.hand_in("ada", json.dumps(raw).encode())
    assert classroom.run(pool) == Counts(graded=1)
    assert classroom.scores() == {"ada": (4, 4)}
    assert classroom.rows()["ada"].notes == "its cells show more than fits: the rest was cut"
    path = classroom.root / "autograded" / "ada" / NAME / f"{SLUG}.ipynb"
    assert path.stat().st_size < examiner.MOST_OUTPUT * 1.1
    shown = [c.outputs for c in nbformat.read(path, 4).cells if c.get("outputs")]
    texts = ["".join(out.text for out in outputs) for outputs in shown]
    assert [len(text) > 10**6 for text in texts[:14]] == [True] * 11 + [False] * 3
    assert texts[11:14] == ["(more than fits here)\n"] * 3
    assert any("ok" in text for text in texts[14:])  # of the checks, uncut


def test_a_grader_that_hangs_is_ended_and_tried_again(monkeypatch):
    give, given = grader.Grader.give, []

    def impatient(self, one):
        given.append(one.key)
        give(self, one)
        self.until = 0.0

    monkeypatch.setattr(grader.Grader, "give", impatient)
    with LocalPool(1) as graders:
        [outcome] = graders([job("one", b"{")])
    assert outcome.why == "grading it took too long" and len(given) == grader.TRIES


def test_without_bubblewrap_grading_refuses_in_one_line(classroom, monkeypatch, tmp_path):
    classroom.whole_class()
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(CourseError, match="bubblewrap, which is missing") as refused:
        classroom.run(workers=1)
    assert "\n" not in str(refused.value)
    assert classroom.scores() == {}


def test_memory_of_a_grader_stays_flat(classroom, pool):
    """Fifty submissions take no more than ten did."""
    api = classroom.api
    release = autograde.Release(api, classroom.root, NAME)
    text = classroom.notebook({"double": DOUBLE, "triple": TRIPLE})
    one = autograde.Submission("ada", NAME, SLUG, text)
    how = {"salt": "s", "limits": grader.Limits(), "sandboxed": True}
    jobs = [replace(release.job(one, how), key=str(n)) for n in range(50)]

    def held():
        family = [pool.graders[0]._process.pid, *descendants(pool.graders[0]._process.pid)]
        status = [Path(f"/proc/{p}/status").read_text().split() for p in family]
        return len(family), sum(int(s[s.index("RssAnon:") + 1]) for s in status) << 10

    assert all(o.notebook for o in pool(jobs[:10]))
    processes, before = held()
    assert all(o.notebook for o in pool(jobs[10:]))
    assert held()[0] == processes
    assert held()[1] < before + 30 * 2**20


# --- Files as they may lie there.


def reasons(room, recorded):
    room.run(recorded)
    return {n: row.why for n, row in room.rows().items() if row.state == FAILED}


def test_odd_files_are_refused_with_a_reason_and_none_is_followed(
    classroom, recorded, tmp_path, monkeypatch
):
    secret = tmp_path / "secret.ipynb"
    secret.write_bytes(classroom.notebook({"double": DOUBLE, "triple": TRIPLE}))
    names = ("link", "pipe", "folder", "dangling", "huge", "other", "late")
    path = {name: classroom.folder(name) / f"{SLUG}.ipynb" for name in names}
    for one in path.values():
        one.parent.mkdir(parents=True)
    path["link"].symlink_to(secret)
    path["dangling"].symlink_to(tmp_path / "nothing")
    os.mkfifo(path["pipe"])
    path["folder"].mkdir()
    with path["huge"].open("wb") as file:
        file.truncate(autograde.LARGEST + 1)
    (path["other"].parent / "my sample.ipynb").write_bytes(secret.read_bytes())
    path["late"].write_bytes(secret.read_bytes())
    (path["late"].parent / "timestamp.txt").write_text("half past nine-ish")
    (classroom.root / "submitted" / "folderlink").mkdir()
    (classroom.root / "submitted" / "folderlink" / NAME).symlink_to(secret.parent)
    found = reasons(classroom, recorded)
    assert found.pop("link").startswith("sample.ipynb cannot be read")
    assert found.pop("dangling").startswith("sample.ipynb cannot be read")
    assert found.pop("pipe") == "sample.ipynb is no file"
    assert found.pop("folder") == "sample.ipynb is no file"
    assert found.pop("huge") == "sample.ipynb has 50 MB; at most 50 are graded"
    assert found.pop("other") == "sample.ipynb was not handed in; there is my sample.ipynb"
    assert found.pop("late") == "timestamp.txt holds no time"
    assert found.pop("folderlink") == f"{NAME} is a link, no folder"
    assert found == {} and classroom.scores() == {}


TIMES = {
    "2026-11-02 10:00:00.000000 UTC": "2026-11-02 10:00:00",
    "2026-11-02 10:00:00": "2026-11-02 10:00:00",
    "2026-11-02 10:00:00.5 +0100": "2026-11-02 09:00:00.500000",
    "2026-11-02 10:00:00.000000 -03": "2026-11-02 13:00:00",
    "2026-11-02 10:00:00 CET": "2026-11-02 09:00:00",
    "2026-11-02T10:00:00Z": "2026-11-02 10:00:00",
    "20261102T1000+05:30": "2026-11-02 04:30:00",
    "2026-11-02": "2026-11-02 00:00:00",
}
NO_TIMES = (
    "24:22222222222222222222222222222200", "10", "10:00", "2026", "1" * 200, "half past nine",
    "2 November 2026", "2026-11-02 25:00", "2026-13-02", "0001-01-01 00:00:00 +14:00",
    "9999-12-31 23:59:59 -14:00", "2026-11-02 10:00:00 tomorrow", "2026-11-02 10:00 \0", "UTC",
)  # fmt: skip


@pytest.mark.parametrize(("stamp", "time"), TIMES.items())
def test_times_of_the_exchange_and_of_iso_8601_are_read(stamp, time):
    assert str(autograde.time_of(stamp)) == time


def test_what_nbgraders_exchange_writes_it_reads_alike():
    from nbgrader.exchange.abc import Exchange
    from nbgrader.utils import parse_utc

    exchange = Exchange()
    exchange.set_timestamp()
    assert autograde.time_of(exchange.timestamp) == parse_utc(exchange.timestamp)


def test_what_is_no_time_stops_nobody_else(classroom, recorded, known):
    """dateutil raises what no parser should, or finds a day of this month."""
    classroom.whole_class()
    for number, stamp in enumerate(NO_TIMES):
        classroom.hand_in(f"odd-{number}", {}, stamp)
    assert classroom.run(recorded) == replace(known[2], failed=2 + len(NO_TIMES))
    rows = classroom.rows()
    for number, stamp in enumerate(NO_TIMES):
        assert rows[f"odd-{number}"].why == "timestamp.txt holds no time", stamp
    classroom.hand_in("ada", None, NO_TIMES[0])
    assert classroom.rows()["ada"].state == WAITING
    assert classroom.run(recorded).failed == 3 + len(NO_TIMES)


def test_a_time_stamp_that_is_a_link_is_not_copied(classroom, recorded, tmp_path):
    classroom.hand_in("ada", {"double": DOUBLE})
    (tmp_path / "secret").write_text("2026-01-01 the secret")
    (classroom.folder("ada") / "timestamp.txt").symlink_to(tmp_path / "secret")
    assert reasons(classroom, recorded)["ada"].startswith("timestamp.txt cannot be read")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
def test_a_folder_whose_name_is_no_text_stops_nobody_else(classroom, recorded, known):
    classroom.whole_class()
    odd = os.fsencode(classroom.root / "submitted") + b"/x\xff/" + NAME.encode()
    os.makedirs(odd)
    assert classroom.run(recorded) == replace(known[2], failed=3)
    assert classroom.rows()["x\\xff/"].why == "the name x\\xff/ is no text"


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
def test_names_that_are_no_text_are_nobody_elses(classroom, recorded):
    for name in ("a?", "a\\xff", "a\ufffd"):
        classroom.hand_in(name, {"double": DOUBLE})
        graded = recorded.outcomes[key_of("ben")]
        recorded.outcomes[key_of(name)] = replace(graded, key=key_of(name))
    for name in (b"/a\xff/", b"/a\xfe/"):
        folder = os.fsencode(classroom.root / "submitted") + name + NAME.encode()
        os.makedirs(folder)
        Path(os.fsdecode(folder + b"/other\xff.ipynb")).touch()
    for _ in range(2):
        classroom.run(recorded)
        assert states(classroom) == {"a?": FAILED, "a\\xff": GRADED, "a\ufffd": GRADED,
                                     "a\\xff/": FAILED, "a\\xfe/": FAILED}  # fmt: skip


@pytest.mark.parametrize("name", ["a\nb", "[ada]", "[^a]", "*", "a?", ".ada"])
def test_a_name_that_nbgrader_would_stumble_over_is_told(classroom, recorded, name):
    """Its feedback would stop at a line break, and leave out the others."""
    classroom.hand_in(name, {"double": DOUBLE})
    assert reasons(classroom, recorded) == {name: f"the name {name!r} is none for nbgrader"}


def test_work_in_the_wrong_place_is_found_and_hidden_files_are_no_news(classroom, recorded):
    classroom.whole_class()
    root = classroom.root / "submitted"
    for name in ("zoe/gpt2.ipynb", "yan/04/sample.ipynb", f"{NAME}/wil/sample.ipynb",
                 "vic.ipynb", f"uma/{NAME}", "ada/a\n\x1b[1m", ".gitkeep", "ada/.DS_Store",
                 ".ipynb_checkpoints/x.ipynb", f"ben/{NAME}/notes.txt"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "empty").mkdir()
    assert autograde.strays(classroom.api, {NAME}) == [
        f"submitted/{NAME}/wil", "submitted/ada/a??[1m", f"submitted/uma/{NAME}",
        "submitted/vic.ipynb", "submitted/yan/04", "submitted/zoe/gpt2.ipynb",
    ]  # fmt: skip
    assert classroom.run(recorded).strays == 6
    shutil.rmtree(root)
    assert autograde.strays(classroom.api, {NAME}) == []


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
def test_a_file_whose_name_is_no_text_is_told(classroom, recorded):
    classroom.hand_in("ada", None)
    Path(os.fsdecode(os.fsencode(classroom.folder("ada")) + b"/my\xff.ipynb")).touch()
    assert reasons(classroom, recorded) == {
        "ada": "sample.ipynb was not handed in; there is my\\xff.ipynb/"}  # fmt: skip


def test_a_folder_that_cannot_be_looked_at_stops_nobody_else(
    classroom, recorded, known, monkeypatch
):
    """For root there is none: so the system's answer is made up."""
    classroom.whole_class().hand_in("shut", {})

    def closed(call):
        def answer(path, *how, **more):
            if "/shut/" in str(path):
                raise PermissionError(13, "Permission denied")
            return call(path, *how, **more)

        return answer

    for name in ("stat", "lstat", "open"):
        monkeypatch.setattr(os, name, closed(getattr(os, name)))
    assert classroom.run(recorded) == replace(known[2], failed=3)
    assert classroom.rows()["shut"].why == "sample.ipynb cannot be read (Permission denied)"


def test_what_a_database_does_not_take_is_that_submissions_failure(
    classroom, recorded, known, monkeypatch
):
    """As PostgreSQL with a name of 200 letters."""
    from sqlalchemy.exc import DataError

    add = autograde.Gradebook.update_or_create_student

    def strict(self, name, **more):
        if name == "ada":
            raise DataError("INSERT", {}, ValueError("value too long"))
        return add(self, name, **more)

    classroom.whole_class()
    monkeypatch.setattr(autograde.Gradebook, "update_or_create_student", strict)
    assert classroom.run(recorded) == replace(known[2], graded=len(EARNED) - 1, failed=3)
    assert "value too long" in classroom.rows()["ada"].why


def test_a_text_that_no_file_can_hold_is_graded_all_the_same(classroom, pool):
    raw = classroom.notebook({"double": "# \ud83d\n" + DOUBLE, "triple": TRIPLE})
    classroom.hand_in("ada", raw)
    assert classroom.run(pool) == Counts(graded=1)
    assert classroom.scores() == {"ada": (4, 4)}


# --- What stops a run says so.


@pytest.mark.parametrize("file", ["gradebook.db", autograde.JOURNAL])
def test_a_damaged_file_is_one_clear_line(classroom, recorded, file):
    classroom.whole_class()
    (classroom.root / file).write_bytes(b"no database" * 1000)
    with pytest.raises(CourseError, match=r"cannot be used \(file is not a database") as told:
        classroom.run(recorded)
    assert "\n" not in str(told.value)


def test_a_gradebook_that_another_program_holds_is_one_clear_line(
    classroom, recorded, known, monkeypatch
):
    classroom.whole_class()
    monkeypatch.setattr(stock, "api", patient(stock.api))
    lock = sqlite3.connect(classroom.root / "gradebook.db", isolation_level=None)
    recorded.on = lambda n: n == 3 and lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CourseError, match=r"the gradebook cannot be used .*locked"):
        classroom.run(recorded)
    lock.execute("ROLLBACK")
    lock.close()
    assert_whole(classroom)
    recorded.on = lambda n: None
    classroom.run(recorded)
    assert classroom.table() == known[1]


def patient(make):
    """SQLite waits five seconds for a lock; a test need not."""

    def api(course):
        made = make(course)
        made.coursedir.db_url = f"sqlite:///{course}/gradebook.db?timeout=0.1"
        return made

    return api


def test_without_a_sandbox_the_grades_are_the_same(classroom, pool, known):
    """For a learner's own work; the last test here, as it ends the warm sandbox."""
    classroom.whole_class()
    assert classroom.run(pool, sandboxed=False) == known[2]
    assert classroom.table() == known[1]
