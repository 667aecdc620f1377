"""There is one way to write a notebook down, and every notebook of ours is written that way."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from llmcourse import notebooks

ROOT = Path(__file__).parents[1]
OURS = [
    path
    for folder in ("book", "solutions", "exercises")
    for path in notebooks.find([ROOT / folder])
]


@pytest.mark.parametrize("path", OURS, ids=[str(p.relative_to(ROOT)) for p in OURS])
def test_every_notebook_is_canonical(path):
    text = path.read_bytes().decode()
    assert not notebooks.faults(text), f"make fmt, for {notebooks.faults(text)}"
    assert notebooks.is_canonical(text)
    nbformat.validate(json.loads(text))


def cell(source="x = 1", **fields):
    plain = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    return plain | {"id": "one", "source": source.splitlines(True)} | fields


def notebook(*cells, **fields):
    plain = {"metadata": notebooks.METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(plain | {"cells": list(cells)} | fields)


def tidy(*cells, **fields):
    return json.loads(notebooks.format_notebook(notebook(*cells, **fields)))


STREAM = {"name": "stdout", "output_type": "stream", "text": "1\n2\n"}
RESULT = {
    "data": {"text/plain": ["3"]},
    "execution_count": 7,
    "metadata": {"x": 1},
    "output_type": "execute_result",
}
MESSY = {
    "an output": (cell(outputs=[STREAM]), "cell 0 (one): outputs"),
    "a count": (cell(execution_count=3), "cell 0 (one): execution_count"),
    "metadata": (cell(metadata={"collapsed": True, "tags": []}), "cell 0 (one): metadata"),
    "a final newline": (cell("x = 1\n"), "cell 0 (one): source"),
    "no id": (cell("x = 1", id=""), "cell 0 (cell-8ff436de): id"),
}


@pytest.mark.parametrize("what", MESSY)
def test_each_fault_is_found_told_and_mended(what):
    messy, told = MESSY[what]
    text = notebook(messy)
    assert told in notebooks.faults(text)
    mended = notebooks.format_notebook(text)
    assert notebooks.faults(mended) == []
    assert notebooks.format_notebook(mended) == mended


def test_layout_is_a_fault_of_its_own():
    text = notebooks.format_notebook(notebook(cell()))
    for other in (text.rstrip(), json.dumps(json.loads(text), indent=2) + "\n"):
        assert notebooks.faults(other) == [
            "layout (order of keys, indent, final newline, escapes)"
        ]
    assert not notebooks.is_canonical(text.replace("\n", "\r\n"))


def test_notebook_metadata_is_ours():
    other = {"kernelspec": {"name": "python3", "display_name": "my env"}, "toc": 1}
    text = notebook(cell("x"), metadata=other, nbformat_minor=4)
    assert notebooks.faults(text)[-2:] == ["metadata", "nbformat_minor"]
    assert tidy(cell(), metadata=other)["metadata"] == notebooks.METADATA


def test_compared_outputs_stay_without_their_counts():
    kept = tidy(cell(outputs=[STREAM, RESULT], metadata={"tags": ["nbval-check-output"]}))
    stream, result = kept["cells"][0]["outputs"]
    assert stream == STREAM | {"text": ["1\n", "2\n"]}
    assert result == RESULT | {"execution_count": None, "metadata": {}}


def test_what_our_tools_read_stays():
    info = {"grade_id": "f", "solution": True}
    metadata = {"nbgrader": info, "tags": ["hide-input"], "jupyter": {"source_hidden": True}}
    pictures = {"a.png": {"image/png": "aGk="}}
    markdown = {"cell_type": "markdown", "id": "m", "metadata": {}, "source": ["![](a.png)"]}
    cells = tidy(cell(metadata=metadata), markdown | {"attachments": pictures})["cells"]
    assert cells[0]["metadata"] == metadata
    assert cells[1]["attachments"] == pictures


def test_ids_are_kept_or_made_the_same_way_every_time():
    graded = {"nbgrader": {"grade_id": "f-check"}}
    untitled = [cell("a", id=""), cell("a", id="no good"), cell("b", id="", metadata=graded)]
    made = [c["id"] for c in tidy(*untitled, cell(id="one"), cell(id="one"))["cells"]]
    assert made == [made[0], f"{made[0]}-2", "f-check", "one", "one-2"]
    assert made == [c["id"] for c in tidy(*untitled, cell(id="one"), cell(id="one"))["cells"]]
    elsewhere = tidy(cell(id="one"), *untitled)["cells"]
    assert elsewhere[1]["id"] == made[0]  # what a cell says counts, not where it stands


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a notebook of nbformat 4"),
        ('{"nbformat": 3, "worksheets": []}', "not a notebook of nbformat 4"),
        ('{"nbformat": 4}', "without a list of cells"),
    ],
)
def test_what_is_no_notebook_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        notebooks.format_notebook(text)


def test_the_command_checks_and_mends(tmp_path, capsys):
    path = tmp_path / "deep" / "a.ipynb"
    path.parent.mkdir()
    path.write_text(notebook(cell(outputs=[STREAM])))
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "a.ipynb").write_text("not one of ours")
    before = path.read_bytes()
    assert notebooks.main(["--check", str(tmp_path)]) == 1
    assert f"{path}: not canonical: cell 0 (one): outputs" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert notebooks.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"formatted {path}\n"
    assert notebooks.main(["--check", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_command_names_what_it_cannot_read(tmp_path, capsys):
    bad = {"latin.ipynb": b"\xff\xfe", "broken.ipynb": b"{"}
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    assert notebooks.main([str(tmp_path), str(tmp_path / "missing.ipynb")]) == 1
    told = capsys.readouterr().err
    assert all(name in told for name in (*bad, "missing.ipynb"))


def test_ruff_leaves_the_canonical_form_alone(tmp_path):
    """`make fmt` runs both: neither may undo the other."""
    path = tmp_path / "a.ipynb"
    path.write_text(
        notebooks.format_notebook(notebook(cell("x=[1,\n 'é']"), cell("y", id="b")))
    )
    command = [sys.executable, "-m", "ruff", "format", "--quiet", str(path)]
    subprocess.run(command, check=True)
    formatted = path.read_text()
    assert "x = [1, " in formatted
    assert notebooks.is_canonical(formatted)
