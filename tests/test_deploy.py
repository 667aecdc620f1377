"""The files in deploy/ and the commands of the instructor's guide are what programs accept."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from llmcourse import cli
from llmcourse.grading import stock

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
GUIDE = (ROOT / "book" / "instructors.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(GUIDE) if kind == language]


def commands() -> list[list[str]]:
    """What the guide tells to type after `llmcourse`."""
    text = "".join(blocks("bash")).replace("\\\n", "")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    ours = ("llmcourse", ".venv/bin/llmcourse")
    return [line[i + 1 :] for line in lines for i, word in enumerate(line) if word in ours]


def load(path: Path) -> Config:
    return PyFileConfigLoader(path.name, path=str(path.parent)).load_config()


@pytest.fixture
def teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a course in it."""
    course = tmp_path / "llmcourse"
    (course / "solutions").mkdir(parents=True)
    shutil.copy(ROOT / "nbgrader_config.py", course)
    for name, value in {"HOME": str(tmp_path), "LLMCOURSE_SALT": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the settings put a folder before it
    return tmp_path


def test_hub_with_one_password_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIAL_PASSWORD", "choose-one")
    hub = load(DEPLOY / "jupyterhub_config.py")
    assert hub.JupyterHub.authenticator_class == "dummy"
    assert hub.JupyterHub.bind_url.startswith("http://127.0.0.1:")
    assert hub.DummyAuthenticator.password == "choose-one"


def test_hub_does_not_start_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIAL_PASSWORD", raising=False)
    with pytest.raises(KeyError, match="TRIAL_PASSWORD"):
        load(DEPLOY / "jupyterhub_config.py")


def test_learners_and_teacher_mean_the_same_course_and_exchange(teacher: Path) -> None:
    learners = load(DEPLOY / "nbgrader_config.py")
    teachers = load(DEPLOY / "teacher_nbgrader_config.py")
    assert learners.CourseDirectory.course_id == teachers.CourseDirectory.course_id
    assert f"0777 {learners.Exchange.root}\n" in GUIDE
    assert "root" not in teachers.Exchange, "the hub's exchange must stay in force"


def test_formgrader_of_the_hub_runs_the_sandbox(teacher: Path) -> None:
    settings = load(DEPLOY / "teacher_nbgrader_config.py")
    assert settings.CourseDirectory.root == str(teacher / "llmcourse")
    steps = settings.Autograde.autograde_preprocessors
    assert "llmcourse.grading.pipeline.SplitExecute" in steps
    assert not any(step.endswith(".Execute") for step in steps)


def test_container_copies_what_there_is_and_grades_as_a_user_without_rights() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)
    assert [line for line in lines if line.startswith("USER ")] == ["USER teacher"]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_of_the_guide_are_ours(words: list[str]) -> None:
    cli._parser().parse_args(words)


def test_the_guide_shows_every_command_of_an_instructor() -> None:
    shown = {words[0] for words in commands()}
    assert shown >= {"autograde", "status", "feedback", "export"}


def test_a_command_that_we_lack_would_be_found() -> None:
    with pytest.raises(SystemExit):
        cli._parser().parse_args(["autograde", "02", "--fast"])


@pytest.mark.parametrize(
    "target", sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", GUIDE, re.M)))
)
def test_make_targets_of_the_guide_exist(target: str) -> None:
    subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)


def test_limits_of_the_guide_are_those_of_the_code() -> None:
    from llmcourse.grading.pipeline import SplitExecute
    from llmcourse.grading.sandbox import Limits

    names = set(re.findall(r"\| `(\w+)`(?: \(bytes\))? \|$", GUIDE, re.M))
    assert names and names <= set(SplitExecute.class_trait_names(config=True))
    at_first = Limits()
    for text in (
        f"| {at_first.memory >> 30} GiB |", f"| {at_first.cell:g} s |",
        f"| {at_first.cpu:g} s |", f"| {at_first.wall:g} s |", f"| {at_first.processes} |",
        f"| {at_first.disk >> 20} MB |",
    ):  # fmt: skip
        assert text in GUIDE


def test_python_of_the_guide_is_python() -> None:
    for code in blocks("python"):
        compile(code, "guide", "exec")


@pytest.mark.parametrize("named", [True, False])
def test_the_exchange_is_the_machines_or_one_of_the_course(
    course, tmp_path, monkeypatch, named
):
    settings = tmp_path / "jupyter"
    settings.mkdir()
    there = tmp_path / "srv"
    if named:
        (settings / "nbgrader_config.py").write_text(f"c.Exchange.root = {str(there)!r}\n")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(settings))
    monkeypatch.chdir(tmp_path)
    root = stock.api(course).config.Exchange.root
    assert root == str(there if named else course / "exchange")
