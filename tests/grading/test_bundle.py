"""What learners get in one file: enough to work with, and nothing that gives an answer away."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from llmcourse import cli
from llmcourse.course import CourseError
from llmcourse.grading import bundle, leaks

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files():
    return bundle.make(ROOT)


@pytest.fixture(scope="module")
def unpacked(files, tmp_path_factory):
    """The course's own bundle, as a learner unpacks it."""
    place = tmp_path_factory.mktemp("learner")
    bundle.write(files, place / "bundle.zip")
    with zipfile.ZipFile(place / "bundle.zip") as packed:
        assert packed.testzip() is None
        packed.extractall(place)
    return place / bundle.FOLDER


ALONE = """
import sys
sys.meta_path = [one for one in sys.meta_path if "Editable" not in str(one)]
from llmcourse.cli import main
sys.exit(main(sys.argv[1:]))
"""


def llmcourse(folder, *words):
    """The learner's command; `pip install -e` must not lend it what the bundle lacks."""
    return learner(folder, "-c", ALONE, *words)


def learner(folder, *command):
    """A command as a learner runs it there, with the packages of this environment."""
    return subprocess.run(
        [sys.executable, "-P", *command], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip


def test_the_same_folder_gives_the_same_bytes(files, tmp_path):
    again = dict(reversed(bundle.make(ROOT).items()))
    for name, content in {"a.zip": files, "deep/b.zip": again}.items():
        bundle.write(content, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "deep" / "b.zip").read_bytes()


def test_it_holds_the_exercises_and_the_package_and_nothing_that_grades(files):
    tops = {name.partition("/")[0] for name in files}
    assert tops == {"README.md", "LICENSE", "constraints.txt", "pyproject.toml", "exercises",
                    "llmcourse"}  # fmt: skip
    assert not [name for name in files if "grading" in name or "zoo" in name or "/." in name]
    assert "llmcourse/texts/harrow_point.txt" in files and "llmcourse/cli.py" in files
    released = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("exercises/*/*.ipynb")}
    assert released <= files.keys()


def test_the_leak_guard_finds_nothing_in_all_of_it(unpacked):
    secrets, public = leaks.secrets(ROOT / "solutions"), leaks.public_text(ROOT)
    assert leaks.scan(leaks.all_files(unpacked), secrets, public) == []
    stolen = unpacked / "exercises" / "stolen.txt"
    stolen.write_bytes((ROOT / "solutions" / "02_gpt2" / "gpt2.ipynb").read_bytes())
    try:
        assert leaks.scan(leaks.all_files(unpacked), secrets, public)
    finally:
        stolen.unlink()


def test_an_exercise_that_gives_something_away_is_not_packed(released):
    (released / "exercises" / "04_sample" / "notes.txt").write_text("### BEGIN SOLUTION")
    with pytest.raises(CourseError, match=r"no bundle, because:\n.*notes.txt"):
        bundle.make(released)


def test_a_learner_can_work_with_it(unpacked):
    said = llmcourse(unpacked, "lab", "--prepare-only")
    assert said.returncode == 0 and "my_work/02_gpt2/gpt2.ipynb: new" in said.stdout
    said = llmcourse(unpacked, "check", "02")
    assert said.returncode == 1 and said.stderr == ""
    assert "0 of " in said.stdout
    said = learner(unpacked, "-c", "import llmcourse; print(llmcourse.__file__)")
    assert said.stdout.strip() == str(unpacked / "llmcourse" / "__init__.py")


def test_what_only_instructors_do_is_one_clear_line(unpacked):
    said = llmcourse(unpacked, "autograde", "02")
    assert said.returncode == 2 and said.stdout == ""
    assert (
        said.stderr == "llmcourse: this copy of the course is a learner's: it grades nothing\n"
    )


def test_pip_installs_it(unpacked, tmp_path):
    build = pytest.importorskip("setuptools")
    assert int(build.__version__.split(".")[0]) >= 77
    said = learner(
        unpacked, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
        "--no-index", "--disable-pip-version-check", "--root-user-action=ignore",
        "--target", str(tmp_path / "site"), ".",
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    site = tmp_path / "site"
    assert (site / "llmcourse" / "texts" / "harrow_point.txt").is_file()
    assert not (site / "llmcourse" / "grading").exists()
    done = llmcourse(site, "check", "--help")
    assert done.returncode == 0 and "another copy than my_work" in done.stdout


def test_its_readme_says_what_the_package_needs(files):
    text = files["README.md"].decode()
    needs = tomllib.loads(files["pyproject.toml"].decode())["project"]["requires-python"]
    assert f"Python {needs.removeprefix('>=')} or newer" in text
    assert "llmcourse lab" in text and '".[lab]"' in text and "- 02_gpt2" in text
    assert "make " not in text and "solutions" not in text


def test_the_command_writes_it_where_it_is_told(released, monkeypatch, capsys):
    for name in bundle.COPIED:
        (released / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.chdir(released)
    assert cli.main(["bundle"]) == 0
    path = released / bundle.FILE
    assert capsys.readouterr().out == f"{path}: 5 files\n"
    assert cli.main(["bundle", "--to", str(released / "pyproject.toml" / "x.zip")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_without_a_release_it_says_what_to_do(course):
    with pytest.raises(CourseError, match="no exercises in exercises/: run make exercises"):
        bundle.make(course)
