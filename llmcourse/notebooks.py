"""The one form in which notebooks are kept, so that a change shows only what was changed.

nbformat 4.5, sorted keys, indent 1, stable cell ids, no execution counts, no outputs but those
of cells tagged `nbval-check-output`, and no metadata but what our tools read.

    python -m llmcourse.notebooks PATH...           bring notebooks (or all in a folder) to it
    python -m llmcourse.notebooks --check PATH...   say which are not in it and why; exit 1
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
# nbgrader locks a release's cells by `deletable` and `editable`; mystnb steers figures; jupyter
# folds the code of a cell.
CELL_METADATA = ("deletable", "editable", "jupyter", "mystnb", "nbgrader", "tags")
KEPT = "nbval-check-output"
ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SKIPPED = {"_build", "node_modules", "site-packages"}


def format_notebook(text: str) -> str:
    """The canonical form of a notebook's text; ValueError if it is none of nbformat 4."""
    notebook = _load(text)
    cells = [_cell(cell) for cell in notebook["cells"]]
    _identify(cells)
    return _dump({"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5})


def is_canonical(text: str) -> bool:
    """Whether `format_notebook` would leave the text as it is."""
    return format_notebook(text) == text


def faults(text: str) -> list[str]:
    """What is not canonical, in words; empty if nothing is."""
    old, new = _load(text), json.loads(format_notebook(text))
    found = [
        f"cell {n} ({c['id']}): {', '.join(changed)}"
        for n, (b, c) in enumerate(zip(old["cells"], new["cells"], strict=True))
        if (changed := [k for k in sorted({*b, *c}) if b.get(k) != c.get(k)])
    ]
    found += [key for key in sorted({*old, *new} - {"cells"}) if old.get(key) != new.get(key)]
    if not found and not is_canonical(text):
        found = ["layout (order of keys, indent, final newline, escapes)"]
    return found


def _load(text: str) -> dict[str, Any]:
    try:
        notebook = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4:
        raise ValueError("not a notebook of nbformat 4")
    if not isinstance(notebook.get("cells"), list):
        raise ValueError("a notebook without a list of cells")
    return notebook


def _dump(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _lines(source: str | list[str]) -> list[str]:
    return "".join(source).rstrip("\n").splitlines(keepends=True)


def _cell(old: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in old.get("metadata", {}).items() if k in CELL_METADATA and v != []}
    new = {
        key: value for key, value in old.items() if key in ("attachments", "cell_type", "id")
    }
    new |= {"metadata": kept, "source": _lines(old["source"])}
    if old["cell_type"] == "code":
        outputs = old.get("outputs", []) if KEPT in kept.get("tags", ()) else []
        # nbval compares no output of a cell that says it was never run
        count = 1 if outputs else None
        new |= {"execution_count": count, "outputs": [_output(o) for o in outputs]}
    return new


def _output(old: dict[str, Any]) -> dict[str, Any]:
    new = {key: value for key, value in old.items() if key != "metadata"}
    if old["output_type"] in ("display_data", "execute_result"):
        new["metadata"] = {}
    if "execution_count" in old:
        new["execution_count"] = None
    if "text" in old:
        new["text"] = "".join(old["text"]).splitlines(keepends=True)
    return new


def _identify(cells: list[dict[str, Any]]) -> None:
    """Keep good ids; make the others from nbgrader's id or else from what the cell says."""
    seen: set[str] = set()
    for cell in cells:
        name = cell.get("id", "")
        if not ID.fullmatch(name):
            digest = hashlib.sha256("".join(cell["source"]).encode()).hexdigest()[:8]
            name = cell["metadata"].get("nbgrader", {}).get("grade_id", f"cell-{digest}")
        unique, number = name, 2
        while unique in seen:
            unique, number = f"{name}-{number}", number + 1
        seen.add(unique)
        cell["id"] = unique


def find(paths: list[Path]) -> Iterator[Path]:
    """The notebooks among paths and inside folders; nothing hidden, built or installed."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for inner in sorted(path.rglob("*.ipynb")):
            parts = inner.relative_to(path).parts
            if not any(p.startswith(".") or p in SKIPPED for p in parts):
                yield inner


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 1 where a notebook is refused or cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m llmcourse.notebooks", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if needed")
    options = parser.parse_args(arguments)
    bad = False
    for path in find(options.paths):
        try:
            text = path.read_bytes().decode("utf-8")
            found = faults(text)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            bad = True
            continue
        if found and options.check:
            print(f"{path}: not canonical: {'; '.join(found)}", file=sys.stderr)
            bad = True
        elif found:
            path.write_text(format_notebook(text), encoding="utf-8", newline="\n")
            print(f"formatted {path}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
