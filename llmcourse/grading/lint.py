"""What a graded notebook must keep to, so that nbgrader releases and scores it as we mean.

    python -m llmcourse.grading.lint solutions/*/*.ipynb

Each rule is there because its opposite was seen to leak a solution, or to give or cost points.
"""

import ast
import difflib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from llmcourse.grading.zoo import Notebook, grade_info, read_notebook, released

Cell = dict[str, Any]
MARKERS = {
    "### BEGIN SOLUTION",
    "### END SOLUTION",
    "### BEGIN HIDDEN TESTS",
    "### END HIDDEN TESTS",
}
ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
POINTS = range(8, 13)
DATA = "data"  # as llmcourse.grading.stock, which needs nbgrader, lets through
CODE = {".py", ".ipynb", ".md", ".pyc"}
LOUD = {"stderr", "warn", "warnings", "tqdm", "logging"}
KEEPERS = {"append", "extend", "insert", "add", "update", "setdefault"}
JUDGES = {"isinstance", "type", "print", "repr", "hash", "id", "vars", "dir"}


def lint(notebook: Notebook) -> list[str]:
    """Every fault of an instructor's notebook, as `cell: what is wrong`; empty if good."""
    return [fault for rule in RULES for fault in rule(notebook)]


def check(path: Path) -> list[str]:
    """Every fault of solutions/NN_slug/slug.ipynb: what `lint` and `lint_place` find."""
    chapters = path.resolve().parents[2] / "book" / "chapters.yml"
    known = yaml.safe_load(chapters.read_text(encoding="utf-8")) if chapters.exists() else None
    notebook = read_notebook(path)
    return lint_place(path, known) + lint(notebook) + lint_data(path, notebook)


def lint_data(path: Path, notebook: Notebook) -> list[str]:
    """Faults of data/ beside it, which is released: cells that learners see name its files.

    So no test's file goes along, nor one that was forgotten there.
    """
    folder = path.parent / DATA
    shown = "\n".join(cell["source"] for cell in released(notebook)["cells"])
    found = []
    for file in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = file.relative_to(path.parent).as_posix()
        if file.is_symlink() or file.suffix in CODE or file.name.startswith("."):
            found.append(f"{name}: only plain data files may lie in {DATA}/")
        elif file.is_file() and not re.search(rf"\b{re.escape(file.name)}(?!\w)", shown):
            found.append(
                f"{name}: no cell that learners see names it, but it would be released"
            )
    return found


def lint_place(path: Path, chapters: list[dict[str, str]] | None) -> list[str]:
    """Faults of where it lies: in its chapter's folder, under its name, alone or with data/.

    Without a list of chapters any number and slug will do.
    """
    folder = path.resolve().parent
    names = {f"{c['number']}_{c['slug']}" for c in chapters or ()}
    found = []
    if chapters is not None and folder.name not in names:
        found.append(f"{folder.name}: no chapter has this number and slug")
    if folder.name.partition("_")[2] != path.stem:
        found.append(
            f"{path.name}: its folder must be NN_{path.stem}, with the chapter's number"
        )
    beside = [
        p.name
        for p in sorted(folder.iterdir())
        if p.name != path.name and not p.name.startswith(".")
    ]
    if (folder / DATA).is_dir():
        beside.remove(DATA)
    return found + [f"{n}: lies beside the notebook, and would be released" for n in beside]


def markers(notebook: Notebook) -> Iterator[str]:
    """Markers are spelt right, alone on their line, paired, and in the right kind of cell."""
    for cell in notebook["cells"]:
        opened = ""
        for line in cell["source"].splitlines():
            text = line.strip()
            if text not in MARKERS:
                if _nearly_a_marker(text):
                    yield f"{cell['id']}: nearly a marker: {text!r}"
                continue
            verb, what = text[4:].split(" ", 1)
            if (verb == "BEGIN") == bool(opened) or (opened and opened != what):
                yield f"{cell['id']}: {text!r} has no partner"
            opened = what if verb == "BEGIN" else ""
            kind = "solution" if what == "SOLUTION" else "grade"
            if not grade_info(cell).get(kind):
                yield f"{cell['id']}: {text!r} in a cell that is no {kind} cell"
        if opened:
            yield f"{cell['id']}: BEGIN {opened} is never ended"


def _nearly_a_marker(text: str) -> bool:
    letters = re.sub(r"[^A-Z]+", " ", text.upper()).strip()
    wanted = [marker[4:] for marker in sorted(MARKERS)]
    inside = any(marker in letters for marker in wanted)
    return inside or bool(difflib.get_close_matches(letters, wanted, n=1, cutoff=0.75))


def names(notebook: Notebook) -> Iterator[str]:
    """Ids are stable: there, well formed, unique, and nbgrader's the same."""
    seen: set[str] = set()
    for number, cell in enumerate(notebook["cells"]):
        name = cell.get("id", "")
        if not ID.fullmatch(name):
            yield f"cell {number}: no id, or one with odd characters: {name!r}"
        if name in seen:
            yield f"{name}: id given twice"
        seen.add(name)
        wanted = grade_info(cell).get("grade_id", name)
        if wanted != name:
            yield f"{name}: grade_id is {wanted!r}, must be the cell's id"


def kinds(notebook: Notebook) -> Iterator[str]:
    """A code cell is a solution, a graded test or a fixture; all but solutions are locked."""
    for cell in notebook["cells"]:
        info, name = grade_info(cell), cell.get("id", "")
        if cell["cell_type"] == "code" and not info:
            yield f"{name}: a code cell that nbgrader knows nothing of: lock it"
        if not info:
            continue
        if info.get("schema_version") != 3:
            yield f"{name}: schema_version must be 3"
        if info.get("solution") and info.get("locked"):
            yield f"{name}: a solution cell cannot be locked"
        if not info.get("solution") and not info.get("locked"):
            yield f"{name}: must be locked"
        if info.get("grade") and info.get("solution") and cell["cell_type"] == "code":
            yield f"{name}: answers and tests stand in different cells"


def points(notebook: Notebook) -> Iterator[str]:
    """8 to 12 points in all, each graded cell worth some."""
    each = {c["id"]: grade_info(c).get("points", 0) for c in _graded(notebook)}
    for name, worth in each.items():
        if not worth > 0:
            yield f"{name}: a graded cell without points"
    if sum(each.values()) not in POINTS:
        yield f"{sum(each.values())} points in all, must be {POINTS[0]} to {POINTS[-1]}"


def hidden_tests(notebook: Notebook) -> Iterator[str]:
    """A graded cell ends in hidden tests, all of them in one `with checks.hidden():`.

    So it ends in a statement (nbgrader reads a last expression as the score), and no line of a
    hidden test is ever in a traceback.
    """
    for cell, tree in _parsed(_graded(notebook)):
        lines = cell["source"].rstrip().splitlines()
        if "### BEGIN HIDDEN TESTS" not in lines or lines[-1] != "### END HIDDEN TESTS":
            yield f"{cell['id']}: must end in hidden tests, their markers not indented"
            continue
        begin = lines.index("### BEGIN HIDDEN TESTS") + 1
        inside = [node for node in tree.body if node.lineno > begin]
        if len(inside) != 1 or not _is_hidden(inside[0]):
            yield f"{cell['id']}: the hidden tests must be one `with checks.hidden():`"
        if any(_is_hidden(node) for node in tree.body if node.lineno < begin):
            yield f"{cell['id']}: checks.hidden() outside the hidden tests"


def quiet(notebook: Notebook) -> Iterator[str]:
    """Locked cells leave standard error alone: nbgrader takes it for a failure."""
    for cell, tree in _parsed(_locked(notebook)):
        used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        used |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        for name in sorted(used & LOUD):
            yield f"{cell['id']}: uses {name}, which may write to standard error"


def stubs(notebook: Notebook) -> Iterator[str]:
    """What a solution cell defines has its signature and docstring outside the solution."""
    for cell, tree in _parsed(_solutions(notebook)):
        if "### BEGIN SOLUTION" not in cell["source"]:
            yield f"{cell['id']}: no solution to take out"
            continue
        bare = _without_solution(cell["source"])
        try:
            kept = {n.name: n for n in ast.parse(bare).body if isinstance(n, _DEFINITIONS)}
        except SyntaxError:
            yield f"{cell['id']}: does not parse once the solution is taken out"
            continue
        for node in tree.body:
            name = getattr(node, "name", "_")
            if not name.startswith("_") and name not in kept:
                yield f"{cell['id']}: the signature of {name} is part of the solution"
            elif name in kept and not ast.get_docstring(kept[name]):
                yield f"{cell['id']}: {name} has no docstring that learners see"


def checked(notebook: Notebook) -> Iterator[str]:
    """Every public name that a solution defines is used in a graded cell."""
    used = {
        node.id
        for _, tree in _parsed(_graded(notebook))
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
    }
    for name in sorted(_learners_names(notebook) - used):
        if not name.startswith("_"):
            yield f"{name}: no graded cell looks at it"


def data_only(notebook: Notebook) -> Iterator[str]:
    """Learners' objects are given to a check, or called with data inside a function that is.

    Anything else would fail, or lie, where the object is a stand-in for one elsewhere.
    """
    theirs = _learners_names(notebook)
    for cell, tree in _parsed(_locked(notebook)):
        around = _parents(tree)
        functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        taken = theirs | {f for f, node in functions.items() if _names(node) & theirs}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in taken:
                fault = _misuse(node, around)
                if fault:
                    yield f"{cell['id']}, line {node.lineno}: {node.id} is {fault}"
        for name in theirs & set(functions):
            yield f"{cell['id']}: defines {name} over the learner's"
        for node in _inner_functions(tree, theirs):
            yield from (f"{cell['id']}, {text}" for text in _judged(node, theirs))


def _misuse(node: ast.Name, around: dict[ast.AST, ast.AST]) -> str:
    if not isinstance(node.ctx, ast.Load):
        return "assigned to, over the learner's"
    parent = around[node]
    if isinstance(parent, ast.Call) and node in parent.args and _is_check(parent.func):
        return ""
    inside = any(isinstance(a, ast.FunctionDef | ast.Lambda) for a in _ancestors(node, around))
    if inside and isinstance(parent, ast.Call) and node is parent.func:
        return ""
    if isinstance(parent, ast.Call) and node is parent.func:
        return "called outside a function that a check calls"
    return "used other than by calling it with data"


def _judged(function: ast.AST, theirs: set[str]) -> Iterator[str]:
    """Places in a test's function where something of a learner's is looked into."""
    tainted = _tainted(function, theirs)
    for node in ast.walk(function):
        judged: list[ast.AST] = []
        if isinstance(node, ast.Compare | ast.JoinedStr):
            judged = [node]
        elif isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):
            judged = [node.test]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in JUDGES:
            judged = [node]
        if any(_names(part) & tainted for part in judged):
            line = getattr(node, "lineno", 0)
            yield f"line {line}: looks into something of the learner's; return it to the check"


def _tainted(function: ast.AST, theirs: set[str]) -> set[str]:
    """Names in a test's function that may hold something of a learner's."""
    bound = [pair for node in ast.walk(function) for pair in _bound(node)]
    tainted, before = set(theirs), set[str]()
    while tainted != before:
        before = set(tainted)
        for target, value in bound:
            if _names(value) & tainted:
                tainted |= _stored(target)
    return tainted


def _bound(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(what is bound, what to) of one statement: `a, b = x, y` binds a to x and b to y."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _paired(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.comprehension):
        yield from _paired(node.target, node.iter)
    elif isinstance(node, ast.withitem) and node.optional_vars:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in KEEPERS:
        for value in node.args:
            yield node.func, value


def _paired(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """One by one where both sides are written out; zip and enumerate are seen through."""
    name = getattr(value.func, "id", "") if isinstance(value, ast.Call) else ""
    parts: list[ast.expr] = getattr(value, "elts", [])
    if isinstance(value, ast.Call) and name in ("zip", "enumerate"):
        parts = [ast.Constant(0), *value.args[:1]] if name == "enumerate" else value.args
    into: list[ast.expr] = getattr(target, "elts", [])
    starred = any(isinstance(part, ast.Starred) for part in (*into, *parts))
    if into and len(into) == len(parts) and not starred:
        for pair in zip(into, parts, strict=True):
            yield from _paired(*pair)
    else:
        yield target, value


def _stored(target: ast.AST) -> set[str]:
    """The names that a target changes: of `d[i].x` d alone."""
    while isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
        target = target.value
    if isinstance(target, ast.Tuple | ast.List):
        return {name for part in target.elts for name in _stored(part)}
    return {target.id} if isinstance(target, ast.Name) else set()


RULES: list[Callable[[Notebook], Iterator[str]]] = [
    markers,
    names,
    kinds,
    points,
    hidden_tests,
    quiet,
    stubs,
    checked,
    data_only,
]

_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def _graded(notebook: Notebook) -> list[Cell]:
    """Graded by running: a written answer that a person marks is none."""
    cells = notebook["cells"]
    return [c for c in cells if grade_info(c).get("grade") and c["cell_type"] == "code"]


def _solutions(notebook: Notebook) -> list[Cell]:
    cells = notebook["cells"]
    return [c for c in cells if grade_info(c).get("solution") and c["cell_type"] == "code"]


def _locked(notebook: Notebook) -> list[Cell]:
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    return [c for c in code if not grade_info(c).get("solution")]


def _parsed(cells: list[Cell]) -> Iterator[tuple[Cell, ast.Module]]:
    for cell in cells:
        yield cell, ast.parse(cell["source"])


def _without_solution(source: str) -> str:
    region = re.compile(r"^( *)### BEGIN SOLUTION.*?### END SOLUTION", re.M | re.S)
    return region.sub(r"\1raise NotImplementedError()", source)


def _learners_names(notebook: Notebook) -> set[str]:
    """Everything that a solution cell binds at its top level, imports excepted."""
    bound = set()
    for _, tree in _parsed(_solutions(notebook)):
        for node in tree.body:
            if isinstance(node, _DEFINITIONS):
                bound.add(node.name)
            elif isinstance(node, ast.Assign):
                bound |= {n for target in node.targets for n in _names(target)}
    return bound


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _ancestors(node: ast.AST, around: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in around:
        node = around[node]
        yield node


def _inner_functions(tree: ast.AST, theirs: set[str]) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda) and _names(node) & theirs:
            yield node


def _is_check(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and _names(function) == {"checks"}


def _is_hidden(node: ast.AST) -> bool:
    if not isinstance(node, ast.With):
        return False
    return [ast.unparse(item.context_expr) for item in node.items] == ["checks.hidden()"]


def main(arguments: list[str]) -> int:
    """Lint the notebooks given as paths; print every fault to standard error."""
    faults = [f"{path}: {fault}" for path in arguments for fault in check(Path(path))]
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
