"""The llmcourse command: what it prints, what it returns, and its errors in one line."""

import json
import re
import subprocess
import sys

import pytest

from llmcourse import cli, lab
from llmcourse import course as places

NAME = "04_sample"
ONE = f"{NAME}/sample.ipynb"


def run(capsys, *arguments):
    """Exit status, standard output and standard error of one command."""
    try:
        status = cli.main(arguments)
    except SystemExit as stopped:
        status = stopped.code
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def here(released, monkeypatch):
    """The working directory is a course folder with a release."""
    monkeypatch.chdir(released)
    return released


def answer(path, **answers):
    book = json.loads(path.read_text())
    for cell in book["cells"]:
        if cell["id"] in answers:
            cell["source"] = answers[cell["id"]]
    path.write_text(json.dumps(book))


@pytest.fixture
def mine(here):
    lab.prepare(here)
    return here / "my_work" / ONE


def rows(text):
    """{function: state} of a report."""
    return {name: state for state, name in re.findall(r"^  (\w+|--) +(\w+)", text, re.M)}


def test_an_unanswered_exercise_is_not_written_yet(mine, capsys):
    status, out, err = run(capsys, "check", "4")
    assert (status, err) == (1, "")
    assert rows(out) == {"double": "--", "triple": "--"}
    assert out.endswith("0 of 2 checks pass.\n")


def test_right_answers_pass(mine, capsys):
    answer(mine, double="def double(x): return 2 * x", triple="def triple(x): return 3 * x")
    status, out, _ = run(capsys, "check", "04_sample")
    assert status == 0
    assert rows(out) == {"double": "ok", "triple": "ok"}
    assert out.endswith("2 of 2 checks pass.\n")


def test_a_wrong_answer_gets_the_checks_message(mine, capsys):
    answer(mine, double="def double(x): return -2 * x", triple="def triple(x): return 3 * x")
    status, out, _ = run(capsys, "check", "sample")
    assert status == 1
    assert rows(out)["double"] == "wrong" and rows(out)["triple"] == "ok"
    assert "wrong value" in out and "expected" in out


def test_a_learner_cannot_pass_by_changing_or_deleting_a_check(mine, capsys):
    book = json.loads(mine.read_text())
    book["cells"] = [c for c in book["cells"] if c["id"] != "triple-check"]
    mine.write_text(json.dumps(book))
    answer(mine, **{"double-check": "print('ok')"})
    status, out, _ = run(capsys, "check", "04")
    assert status == 1 and rows(out) == {"double": "--", "triple": "--"}


def test_a_pasted_check_counts_once(mine, capsys):
    """JupyterLab copies the metadata too: a check that passes twice must not hide another."""
    answer(mine, double="def double(x): return 2 * x")
    book = json.loads(mine.read_text())
    check = next(c for c in book["cells"] if c["id"] == "double-check")
    book["cells"].append(check | {"id": "pasted"})
    mine.write_text(json.dumps(book))
    status, out, _ = run(capsys, "check", "04")
    assert status == 1 and out.count("double") == 1
    assert out.endswith("1 of 2 checks pass.\n")


def test_a_cell_without_metadata_is_code_of_ones_own(mine, capsys):
    book = json.loads(mine.read_text())
    book["cells"].append({"cell_type": "code", "source": "1 / 0"})
    del book["metadata"]
    mine.write_text(json.dumps(book))
    assert "ZeroDivisionError" in run(capsys, "check", "04")[1]


@pytest.mark.parametrize("text", ["", "{not json", "[]", '{"cells": 3}', '{"cells": [1]}'])
def test_a_corrupted_copy_is_one_clear_line(mine, capsys, text):
    mine.write_text(text)
    status, out, err = run(capsys, "check", "04")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"{mine} cannot be read as a notebook" in err


@pytest.mark.parametrize("module", ["nbformat", "nbclient"])
def test_without_the_labs_packages_it_says_what_to_install(mine, monkeypatch, capsys, module):
    monkeypatch.setitem(sys.modules, module, None)
    status, _, err = run(capsys, "check", "04")
    assert status == 2 and f"{module} is missing: pip install" in err and err.count("\n") == 1


def test_an_error_in_the_learners_own_cell_is_told(mine, capsys):
    answer(mine, double="def double(x) return x")
    _, out, _ = run(capsys, "check", "04")
    assert "in your cell double" in out and "SyntaxError" in out


def test_a_dead_kernel_is_told(mine, capsys):
    answer(mine, double="import os\nos._exit(1)")
    status, out, _ = run(capsys, "check", "04")
    assert status == 1 and "the kernel stopped here" in out


def test_another_copy_can_be_named(mine, capsys, tmp_path):
    other = mine.rename(tmp_path / "other.ipynb")
    answer(other, double="def double(x): return 2 * x")
    _, out, _ = run(capsys, "check", "04", str(other))
    assert rows(out)["double"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check", "99"), "no exercise '99'; there are: 04_sample"),
        (("check", "04"), "there is no my_work/.*: make lab puts it there"),
        (("check", "04", "other.ipynb"), "there is no notebook other.ipynb$"),
        (("check", "04", "."), "there is no notebook .$"),
        (("check", "04", "pyproject.toml"), "cannot be read as a notebook"),
        (("release", "--check"), "exercises/ is not current: run make exercises|no release"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(here, capsys, arguments, says):
    status, _, err = run(capsys, *arguments)
    assert status in (1, 2) and re.search(says, err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [("check", "02"), ("lab",), ("release",), ("demo-class",)])
def test_outside_of_a_course_folder_is_one_clear_line(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *command)
    assert status == 2 and "is not in a course folder" in err and err.count("\n") == 1


def test_commands_work_below_the_course_folder(mine, monkeypatch):
    monkeypatch.chdir(mine.parent)
    assert places.find_root() == mine.parents[2]


def test_the_lab_is_prepared_without_opening_it(here, capsys):
    status, out, _ = run(capsys, "lab", "--prepare-only")
    assert (status, out) == (0, f"my_work/{ONE}: new\n")


def test_the_lab_passes_jupyters_own_options_on(here, monkeypatch):
    seen = []
    monkeypatch.setattr(lab, "open_lab", lambda root, rest: seen.append(rest) or 0)
    assert cli.main(["lab", "--no-browser", "--port=9999"]) == 0
    assert seen == [["--no-browser", "--port=9999"]]


def test_a_misspelt_option_is_refused(here, capsys):
    status, _, err = run(capsys, "check", "04", "--vebose")
    assert status == 2 and "--vebose" in err


def test_output_that_nobody_reads_to_its_end_is_no_error(mine):
    command = f"{sys.executable} -m llmcourse.cli check 04 | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=mine.parent, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr == ""


def test_leaks_finds_none_and_some(here, capsys):
    assert run(capsys, "leaks")[:2] == (0, "no solution and no hidden test found\n")
    (here / "exercises" / "04_sample" / "notes.txt").write_text("### BEGIN SOLUTION")
    assert run(capsys, "leaks")[0] == 1


def test_an_interrupt_ends_quietly(here, monkeypatch, capsys):
    def interrupt(root):
        raise KeyboardInterrupt

    monkeypatch.setattr(lab, "prepare", interrupt)
    status, _, err = run(capsys, "lab")
    assert status == 130 and err == "\nllmcourse: stopped\n"


# --- An instructor's commands.


@pytest.fixture
def graded(here, monkeypatch):
    """Grading that only notes how it was asked for."""
    autograde = pytest.importorskip("llmcourse.grading.autograde")
    asked = []

    def grade(root, name, **how):
        asked.append((root, name, how))
        return autograde.Counts(graded=2, failed=int(how["again"]), before=1)

    monkeypatch.setattr(autograde, "run", grade)
    return asked


def test_autograde_says_how_many_and_fails_when_one_failed(graded, here, capsys):
    assert run(capsys, "autograde", "4") == (0, f"{NAME}: 2 graded, 0 failed, 1 before\n", "")
    status, out, _ = run(capsys, "autograde", "sample", "--again")
    assert status == 1 and out.endswith(
        "1 failed, 1 before\nllmcourse status sample says why\n"
    )
    root, name, how = graded[0]
    assert (root, name) == (here.resolve(), NAME)
    assert how["sandboxed"] and how["workers"] is how["pool"] is None and how["students"] == []


def test_autograde_tells_of_what_is_not_where_it_looks(graded, here, monkeypatch, capsys):
    autograde = pytest.importorskip("llmcourse.grading.autograde")
    monkeypatch.setattr(autograde, "run", lambda *_, **__: autograde.Counts(strays=2))
    status, out, _ = run(capsys, "autograde", "4")
    assert status == 0 and out.splitlines()[1:] == [
        f"nothing was handed in: looked for is submitted/LEARNER/{ONE}",
        "not recognised: 2 (llmcourse status 4 names them)",
    ]


def test_autograde_takes_its_options(graded, capsys):
    run(capsys, "autograde", "4", "--student", "ada", "--student", "ben", "--workers", "3",
        "--memory", "1024", "--seconds", "120", "--unsafe-no-sandbox")  # fmt: skip
    how = graded[0][2]
    limits = how["limits"]
    assert how["students"] == ["ada", "ben"] and how["workers"] == 3 and not how["sandboxed"]
    assert (limits.memory, limits.cell) == (2**30, 120)
    assert limits.cpu > 120 and limits.wall > 120  # of all cells together


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--memory", "0"), "memory: got 0 MB, needs 512 or more"),
        (("--memory", "-5"), "memory: got -5 MB, needs 512 or more"),
        (("--memory", "9" * 30), "memory: got 9+ MB, needs 512"),
        (("--seconds", "0"), "seconds: got 0, needs more than 0"),
        (("--seconds", "nan"), "seconds: got nan, needs more than 0"),
        (("--seconds", "inf"), "seconds: got inf, needs more than 0, to 86400"),
        (("--scheduler", "tls://x:1"), "--scheduler needs --tls-ca, --tls-cert, --tls-key too"),
        (("--scheduler", "tcp://x:1", "--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"),
         "scheduler: got tcp://x:1, needs tls://: an open one runs anyone's code"),
        (("--scheduler", "tls://x:1", "--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"),
         "tls ca: there is no file a"),
    ],
)  # fmt: skip
def test_what_autograde_cannot_do_is_one_line(graded, capsys, options, says):
    status, out, err = run(capsys, "autograde", "4", *options)
    assert (status, out) == (2, "") and re.search(says, err) and err.count("\n") == 1
    assert graded == []


@pytest.mark.parametrize("workers", ["0", "-1"])
def test_no_workers_are_refused(here, capsys, workers):
    pytest.importorskip("nbgrader")
    status, _, err = run(capsys, "autograde", "4", f"--workers={workers}")
    assert status == 2 and err == f"llmcourse: workers: got {workers}, needs at least 1\n"


@pytest.fixture
def marked(here):
    """A course whose gradebook has one submission, graded by hand."""
    stock = pytest.importorskip("llmcourse.grading.stock")
    pytest.importorskip("nbgrader")
    api = stock.api(here)
    stock.must(api.generate_assignment(NAME), "generating")
    with api.gradebook as book:
        book.add_student("ada", first_name="Ada", last_name="Lovelace")
        book.add_submission(NAME, "ada")
        for grade in book.find_submission_notebook("sample", NAME, "ada").grades:
            grade.manual_score = 3
        book.db.commit()
    folder = here / "submitted" / "ben" / NAME
    folder.mkdir(parents=True)
    (folder / "sample.ipynb").write_text("{}")
    return here


def test_status_counts_what_is_graded_and_what_waits(marked, capsys):
    status, out, err = run(capsys, "status")
    assert (status, err) == (0, "")
    assert out.splitlines()[1].split() == [NAME, "1", "0", "1"]
    assert run(capsys, "status", "4")[1] == out


def test_grades_are_exported_to_a_file_or_the_terminal(marked, capsys, tmp_path):
    status, out, _ = run(capsys, "export", "4")
    assert status == 0 and f"{NAME},ada,graded,,6.0,8.0," in out
    for kind in ("canvas", "moodle"):
        path = tmp_path / f"{kind}.csv"
        assert run(capsys, "export", "--format", kind, "--to", str(path))[:2] == (
            0, f"{path}: 2 rows\n")  # fmt: skip
        assert "Lovelace" in path.read_text() and NAME in path.read_text()
    status, _, err = run(capsys, "export", "--to", str(tmp_path))
    assert status == 2 and "cannot be written" in err and err.count("\n") == 1
    assert run(capsys, "export", "--format", "word")[0] == 2


@pytest.mark.parametrize("command", [("feedback", "4"), ("feedback", "4", "--release")])
def test_feedback_on_nothing_says_what_comes_first(marked, capsys, command):
    status, out, err = run(capsys, *command)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "nothing of 04_sample is graded yet: run llmcourse autograde 4;" in err


def test_collecting_where_nobody_handed_in_says_what_to_do(marked, capsys):
    status, out, err = run(capsys, "collect", "4")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"nobody handed in through the exchange {marked.resolve()}/exchange yet" in err
    assert "nbgrader release_assignment" in err and "submitted/" in err


def test_an_exchange_that_is_missing_is_told(marked, capsys, tmp_path):
    with (marked / "nbgrader_config.py").open("a") as file:
        file.write(f"c.Exchange.root = {str(tmp_path / 'none')!r}\n")
    status, _, err = run(capsys, "collect", "4")
    assert status == 2 and f"the exchange {tmp_path}/none is missing or closed" in err
    assert err.count("\n") == 1 and "contact your instructor" not in err


def graded_work(course, learner, **files):
    """As grading leaves it, and what the exchange puts beside."""
    folder = course / "autograded" / learner / NAME
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    source = course / "exercises" / ONE
    (folder / "sample.ipynb").write_text(source.read_text())


def test_feedback_goes_to_those_whose_work_came_through_the_exchange(marked, capsys):
    """Work that was put there by hand has no key to its feedback: who it is of is told."""
    stock = pytest.importorskip("llmcourse.grading.stock")
    with stock.api(marked).gradebook as book:
        book.add_student("ben")
        book.add_submission(NAME, "ben")
    stamp = "2026-11-01 10:00:00 UTC"
    graded_work(marked, "ada", timestamp=stamp, submission_secret="0123abcd")
    graded_work(marked, "ben", timestamp=stamp)
    status, out, err = run(capsys, "feedback", "4", "--release")
    assert (status, out) == (2, f"feedback for {NAME} is in feedback/\n")
    assert "no feedback was handed out to ben: their work did not come through" in err
    assert f"give them their pages, feedback/LEARNER/{NAME}" in err and err.count("\n") == 1
    assert (marked / "feedback" / "ben" / NAME / "sample.html").is_file()
    assert len(list((marked / "exchange").rglob("feedback/*.html"))) == 1
    assert run(capsys, "feedback", "4")[0] == 0


def test_a_page_that_shows_a_hidden_test_goes_and_the_others_stay(marked, capsys):
    graded_work(marked, "ada")
    cells = json.loads((marked / "solutions" / ONE).read_text())["cells"]
    hidden = next(t for c in cells if "HIDDEN" in (t := "".join(c["source"])))
    page = marked / "feedback" / "eve" / NAME / "sample.html"
    page.parent.mkdir(parents=True)
    page.write_text(hidden)
    other = marked / "feedback" / "eve" / "05_other" / "other.html"
    other.parent.mkdir()
    other.write_text("### BEGIN HIDDEN TESTS")
    status, out, err = run(capsys, "feedback", "4")
    assert (status, out) == (1, f"feedback for {NAME} is in feedback/\n")
    assert str(page) in err and "taken away" in err
    pages = sorted((marked / "feedback").rglob("*.html"))
    assert [p.relative_to(marked).parts[1:3] for p in pages] == [
        ("ada", NAME), ("eve", "05_other")
    ]  # fmt: skip


def test_a_page_that_was_taken_away_is_not_handed_out(marked, monkeypatch, capsys):
    leaks = pytest.importorskip("llmcourse.grading.leaks")
    stock = pytest.importorskip("llmcourse.grading.stock")
    with stock.api(marked).gradebook as book:
        book.add_student("ben")
        book.add_submission(NAME, "ben")
    for name, key in (("ada", "0123abcd"), ("ben", "4567cdef")):
        stamp = "2026-11-01 10:00:00 UTC"
        graded_work(marked, name, timestamp=stamp, submission_secret=key)
    page = marked / "feedback" / "ben" / NAME / "sample.html"
    found = [leaks.Leak(page, "text of a hidden test", "x"), leaks.Leak(page, "another", "y")]
    monkeypatch.setattr(leaks, "check_feedback", lambda *_, **__: found)
    status, _, err = run(capsys, "feedback", "4", "--release")
    assert (status, err.count("\n")) == (1, 3) and not page.exists()
    assert len(list((marked / "exchange").rglob("feedback/*.html"))) == 1


@pytest.mark.parametrize("command", ["collect", "autograde", "feedback", "export", "status"])
def test_an_exercise_that_is_not_there_is_one_line(here, capsys, command):
    status, _, err = run(capsys, command, "77")
    assert status == 2 and "no exercise '77'; there are: 04_sample" in err
