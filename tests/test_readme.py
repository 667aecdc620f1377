"""What the README and CONTRIBUTING tell a reader to type works."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from llmcourse import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(text, language):
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def commands(text, language="bash"):
    lines = "".join(blocks(text, language)).splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.strip()]


def make_targets():
    spans = re.findall(r"`make ([a-z-]+)", README + CONTRIBUTING)
    typed = [c.split()[1] for c in commands(README) + commands(CONTRIBUTING) if "make" in c]
    return sorted({*spans, *typed})


def test_the_two_commands_come_first():
    assert commands(README)[:2] == ["make book", "make test"]


@pytest.mark.parametrize("target", make_targets())
def test_every_make_target_exists_and_is_listed(target):
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(rf"^  make {target} ", listed.stdout, re.M)
    subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize("code", blocks(README, "python"))
def test_python_blocks_run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "124,439,808 parameters" in done.stdout


def test_every_other_command_is_known():
    """No line in a bash block escapes these tests."""
    plain = [c for c in commands(README) + commands(CONTRIBUTING) if not c.startswith("make ")]
    assert [shlex.split(c)[0] for c in plain] == [
        "python3",
        ".venv/bin/python",
        ".venv/bin/llmcourse",
    ]


def test_the_plain_commands_work(released):
    """In an environment made as the first says; installing is left to this one's packages."""
    venv, install, lab = [shlex.split(c) for c in commands(README) if ".venv" in c]
    assert venv == ["python3", "-m", "venv", ".venv"]
    subprocess.run([sys.executable, *venv[1:], "--without-pip"], cwd=released, check=True)
    assert (released / ".venv/bin/python").exists()
    assert install[1:4] == ["-m", "pip", "install"] and "-e" in install
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert install[-1] == ".[lab]" and "lab" in extras["optional-dependencies"]
    assert (ROOT / install[install.index("-c") + 1]).is_file()
    command = [str(Path(sys.executable).parent / Path(lab[0]).name), *lab[1:], "--prepare-only"]
    done = subprocess.run(command, cwd=released, capture_output=True, text=True, check=True)
    assert "my_work/04_sample/sample.ipynb: new" in done.stdout


def test_the_windows_commands_are_the_same():
    as_unix = [
        c.replace("py ", "python3 ").replace("\\", "/").replace("Scripts", "bin")
        for c in commands(README, "powershell")
    ]
    assert as_unix == [c for c in commands(README) if ".venv" in c]


def test_the_llmcourse_commands_named_in_prose_exist():
    named = set(re.findall(r"[`/]llmcourse ([a-z-]+)", README + CONTRIBUTING))
    known = cli._parser()._subparsers._group_actions[0].choices
    assert named and named <= set(known)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo Python 3.9.18; [ $1 = --version ]", "python3 is Python 3.9.18. Install one"),
        ("exit 127", "python3 is missing. Install one"),
    ],
)
def test_make_says_what_is_wrong_with_an_old_python(tmp_path, script, says):
    old = tmp_path / "python3"
    old.write_text(f"#!/bin/sh\n{script}\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["make", f"PYTHON={old}", f"VENV={tmp_path}/venv", f"{tmp_path}/venv/bin/python"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"MAKEFLAGS": ""},
    )
    assert done.returncode != 0
    first = done.stderr.splitlines()[0]
    assert first.startswith("make: Python 3.11.5 or newer is needed; ") and says in first
    assert not (tmp_path / "venv").exists()


def test_the_chapters_it_says_are_written_are_written():
    said = re.search(r"^Written so far: chapters (.+), of \d\d\.$", README, re.MULTILINE)[1]
    numbers = []
    for part in re.split(r", | and ", said):  # "01 to 03" or "05"
        first, *last = map(int, part.split(" to "))
        numbers += range(first, (last or [first])[0] + 1)
    written = sorted(p.name[:2] for p in (ROOT / "book").glob("[0-9][0-9]_*.ipynb"))
    assert written == [f"{n:02}" for n in numbers]
