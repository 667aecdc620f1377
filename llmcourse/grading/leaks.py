"""Guard: no text of a solution or of a hidden test stands where learners can read it.

What is secret is read from the markers in solutions/. Text is compared without its white
space, comments and trailing commas, and through several readings of a file (as it is, without
HTML tags, with HTML, JSON and URL escapes undone, unpacked), so that neither highlighting nor
escaping nor a formatter hides it. Other names for the variables do. What the package and the
book show is public: a solution may share lines with them, a twist or a hidden test may not
stand there whole.
"""

import html
import json
import re
import urllib.parse
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from llmcourse.course import assignments
from llmcourse.grading import unpack

SHORTEST = 24  # characters without white space; shorter lines are judged with their neighbours
BLOCK = 3  # so many lines of a solution in a row are one, wherever each of them stands alone
COVERED = 0.7  # a twist or hidden test of which so much stands in the book is given away
PRINTED = str.maketrans(  # what typesetting makes of code
    {"'": '"', "‘": '"', "’": '"', "“": '"', "”": '"', "…": "...", "–": "--", "−": "-"}
)
TEXT = {".ipynb", ".html", ".htm", ".js", ".json", ".md", ".rst", ".py", ".txt", ".csv", ".xml"}
PACKED = {".zip", ".gz", ".npz", ".png", ".svg", ".ps", ".pdf", ".log", ".css", ".tsv", ".yml"}
# A comment, or (1) what is none for a quote behind it: read once, not again from each `#`.
COMMENT = re.compile(r"(?m)((?:^|(?<=\s))#[^\n\"']*+[\"'])|(?:^|(?<=\s))#[^\n\"']*+$")
MARGIN = re.compile(r"(?m)^[ \t]*+(?:\d++[ \t|:.]++|>>>|\.\.\. |[>#|+*-]++[ \t])++")
MARKERS = ("HIDDEN TESTS", "SOLUTION", "MARK SCHEME")
BEGIN = re.compile(rf"BEGIN ({'|'.join(MARKERS)})")


@dataclass(frozen=True)
class Secret:
    """One region of a source notebook that must not get out."""

    kind: str  # "solution", "hidden test", "twist"
    where: str
    lines: tuple[str, ...]
    beside: str  # the notebook's own code outside of all regions, squeezed

    @property
    def assignment(self) -> str:
        return self.where.partition(",")[0]


@dataclass(frozen=True)
class Leak:
    """One place where a secret, or a marker that should have been removed, was found."""

    file: Path
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}: {self.text[:70]}"


def secrets(solutions: Path) -> list[Secret]:
    """Return every solution and hidden test of the source notebooks in `solutions`."""
    return [s for one in assignments(solutions) for s in _of_notebook(one.notebook(solutions))]


def _of_notebook(path: Path) -> Iterator[Secret]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    around = "\n".join(_outside(c) for c in cells if c["cell_type"] == "code")
    beside = squeeze(uncomment(around))
    answers = [c for c in cells if _is_answer(c) and c["cell_type"] == "code"]
    for cell in cells:
        where = f"{path.parent.name}, cell {cell.get('id', '?')}"
        last = bool(answers) and cell is answers[-1]
        for kind, text in _regions(cell):
            kind = "twist" if last and kind == "solution" else kind
            bare = uncomment(text)
            lines = tuple(line for line in map(squeeze, bare.split("\n")) if line)
            if lines:
                yield Secret(kind, where, lines, beside)


def _is_answer(cell: dict[str, Any]) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get("solution"))


def _regions(cell: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (kind, text) of each marked region; an unmarked answer is one as a whole."""
    source = "".join(cell["source"])
    names = {
        "SOLUTION": "solution",
        "HIDDEN TESTS": "hidden test",
        "MARK SCHEME": "mark scheme",
    }
    found = [(names[kind], text) for kind, text in regions(source)]
    whole = _is_answer(cell) and not any(kind == "solution" for kind, _ in found)
    return [*found, ("solution", source)] if whole else found


def _outside(cell: dict[str, Any]) -> str:
    whole = _is_answer(cell) and "BEGIN SOLUTION" not in "".join(cell["source"])
    return "" if whole else outside("".join(cell["source"]))


def regions(text: str) -> list[tuple[str, str]]:
    """Return (marker, text) of every region between two markers."""
    lines = text.split("\n")
    return [(kind, "\n".join(lines[i + 1 : end])) for kind, i, end in _spans(lines)]


def outside(text: str) -> str:
    """Return a text with an empty line in place of every region."""
    lines = text.split("\n")
    for _, start, end in reversed(_spans(lines)):
        lines[start : end + 1] = [""]
    return "\n".join(lines)


def _spans(lines: list[str]) -> list[tuple[str, int, int]]:
    """Return (marker, line of BEGIN, line of END) of every region, in one pass."""
    ends = {m: [i for i, line in enumerate(lines) if f"END {m}" in line] for m in MARKERS}
    found, free = [], 0
    for i, line in enumerate(lines):
        for kind in reversed(BEGIN.findall(line)):
            later = bisect_right(ends[kind], i)
            if i >= free and later < len(ends[kind]):
                found.append((kind, i, ends[kind][later]))
                free = ends[kind][later] + 1
    return found


def uncomment(text: str) -> str:
    """Return code without its comments; one with a quote in it may be part of a string."""
    return COMMENT.sub(r"\1", text)


def squeeze(text: str) -> str:
    """Return `text` as it is compared: without white space, with one kind of quote.

    A comma before a closing bracket goes too: whether it stands there is a formatter's choice.
    """
    text = re.sub(r"\\\n|[\s\u00ad\u200b-\u200f\u2060\ufeff]+", "", text).translate(PRINTED)
    return re.sub(r",(?=[)\]}])", "", text)


def public_text(root: Path) -> str:
    """Return what everyone may read, squeezed: the package's source and the book's."""
    files = [p for p in (root / "llmcourse").rglob("*.py") if "grading" not in p.parts]
    files += [p for p in (root / "book").rglob("*") if p.suffix in {".md", ".ipynb", ".bib"}]
    texts = ("\n".join(_strings(p)) for p in sorted(files))
    return "\0".join(squeeze(form) for text in texts for form in (text, uncomment(text)))


def _strings(path: Path) -> list[str]:
    """Return the texts in a file: of a notebook every string in it, metadata included."""
    if path.suffix != ".ipynb":
        return [unpack.text(raw) for raw in unpack.layers(path.read_bytes())]
    try:
        book = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return [unpack.text(path.read_bytes())]
    found = list(_walk(book))
    inner = (raw for text in found for raw in unpack.encoded(text))
    return [*found, "\n".join(_sources(path)), *map(unpack.text, inner)]


def _walk(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(v, str) for v in value):
        yield "".join(value)  # a source or an output, split into lines
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _walk(item)


def readings(path: Path) -> list[str]:
    """Return the texts of a file and what is left of them without tags and escapes."""
    return list(dict.fromkeys(one for text in _strings(path) for one in unwrap(text)))


def unwrap(text: str) -> list[str]:
    """Return a text, and what it may be read as: without tags, escapes, comments, margins."""
    found: dict[str, None] = {}
    for one in dict.fromkeys((text, _unslash(text), urllib.parse.unquote(text))):
        plain = _unescape(one)
        found |= dict.fromkeys((one, _untag(one), plain, _unescape(plain)))
        found |= dict.fromkeys((_unescape(_untag(one)), _untag(plain)))
    for one in list(found):
        bare = MARGIN.sub("", one)
        found |= dict.fromkeys((bare, uncomment(one), uncomment(bare)))
    return list(found)


def _unescape(text: str) -> str:
    """Undo the escapes of HTML; Python refuses numbers of more than 4300 digits."""
    return html.unescape(re.sub(r"&#\d{9,}+", "&#0", text))


def _untag(text: str) -> str:
    return re.sub(r"<[/!a-zA-Z][^<>]*+>", "", text)


def _unslash(text: str) -> str:
    """Undo the escapes of JSON, JavaScript and Python strings."""
    text = re.sub(r"\\(?:u|x|u\{)([0-9a-fA-F]{4}|[0-9a-fA-F]{2})\}?", _character, text)
    return (
        text.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"').replace("\\'", "'")
    )


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16))


def pieces(secret: Secret, public: str) -> list[str]:
    """Return the squeezed texts of a secret that, found anywhere, betray it."""
    alone = [p for p in _runs(secret.lines, 1) if p not in public and p not in secret.beside]
    if secret.kind == "hidden test":
        return alone
    return alone + [p for p in _runs(secret.lines, BLOCK) if p not in public]


def _runs(lines: tuple[str, ...], least: int) -> Iterator[str]:
    """Yield, from each line on, the shortest long enough run of `least` lines or more."""
    enough = SHORTEST if least == 1 else 2 * SHORTEST
    for start in range(len(lines)):
        for end in range(start + least, len(lines) + 1):
            if len(text := squeeze("".join(lines[start:end])).rstrip(",")) >= enough:
                yield text
                break


def scan(files: Iterable[Path], hidden: list[Secret], public: str, own: str = "") -> list[Leak]:
    """Return the leaks in `files`.

    `public` is public_text(root); `own` is squeezed text that the readers of these files wrote
    themselves: a learner may have had the same thought as a test.
    """
    wanted = [
        (piece, f"text of the {s.kind} in {s.where}")
        for s in hidden
        for piece in pieces(s, public)
        if piece not in own
    ]
    leaks = []
    for file in files:
        texts = readings(file)
        hay = "\0".join(map(squeeze, texts))
        found = {what: piece for piece, what in reversed(wanted) if piece in hay}
        leaks += [Leak(file, what, piece) for what, piece in found.items()]
        lines = dict.fromkeys(line for text in texts for line in text.split("\n"))
        leaks += [
            Leak(file, "a marker that should be gone", line.strip())
            for line in lines
            if is_marker(line) and not _typed(line, own)
        ]
    return leaks


def _typed(line: str, own: str) -> bool:
    """Say whether a line of a page is one that its reader typed."""
    plain = squeeze(_untag(_unescape(line)))
    return bool(plain) and plain in own


def is_marker(line: str) -> bool:
    """Say whether a line is one of nbgrader's markers, or a comment that nearly is one."""
    if any(f"{edge} {name}" in line for edge in ("BEGIN", "END") for name in MARKERS):
        return True
    comment = re.match(r"\s*(?:#|<!--|//|%)(.{0,60})$", line)
    words = re.findall(r"[A-Z]+", comment[1].upper()) if comment else []
    if not words:
        return False
    rest = "".join(words[1:])
    edge = max(_alike(words[0], "BEGIN"), _alike(words[0], "END"))
    apart = any(_alike(rest, squeeze(name)) >= 0.75 for name in MARKERS)
    fused = max(
        _alike("".join(words), e + squeeze(n)) for e in ("BEGIN", "END") for n in MARKERS
    )
    return (edge >= 0.7 and apart) or fused >= 0.88


def _alike(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def given_away(hidden: list[Secret], public: str, root: Path) -> list[Leak]:
    """Return the twists and hidden tests that stand, nearly whole, in package or book."""
    leaks = []
    for secret in hidden:
        runs = list(_runs(secret.lines, 1))
        share = sum(run in public for run in runs) / max(len(runs), 1)
        if secret.kind != "solution" and len(runs) > 1 and share >= COVERED:
            what = f"the package or the book holds the {secret.kind} in {secret.where}"
            leaks.append(Leak(root, what, secret.lines[0]))
    return leaks


def text_files(folder: Path) -> list[Path]:
    """Return the files below `folder` that hold text, without the theme's own scripts."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in TEXT | PACKED and "_static" not in path.parts
    ]


def all_files(folder: Path) -> list[Path]:
    """Return every file below `folder`."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def check(root: Path, release: Path | None = None) -> list[Leak]:
    """Return the leaks in the release, the built site, the book's sources and all feedback.

    `release` (default: exercises/ in `root`) may lie elsewhere while it is made.
    """
    hidden, public = secrets(root / "solutions"), public_text(root)
    leaks = given_away(hidden, public, root)
    leaks += scan(all_files(release or root / "exercises"), hidden, public)
    if release is None:
        leaks += scan(text_files(root / "_build" / "html"), hidden, public)
        leaks += check_feedback(root, hidden, public)
    return leaks


def check_feedback(
    course: Path,
    hidden: list[Secret] | None = None,
    public: str | None = None,
    assignment: str = "*",
) -> list[Leak]:
    """Return the hidden tests that stand in feedback/ of a course folder.

    Answers are the learners' own and may equal a solution; so may a line of theirs a test's.
    """
    hidden = secrets(course / "solutions") if hidden is None else hidden
    public = public_text(course) if public is None else public
    leaks = []
    for folder in sorted((course / "feedback").glob(f"*/{assignment}")):
        learner, name = folder.parts[-2:]
        tests = [s for s in hidden if s.kind == "hidden test" and s.assignment == name]
        graded = sorted((course / "autograded" / learner / name).glob("*.ipynb"))
        typed = "\n".join(text for path in graded for text in _sources(path, locked=False))
        own = "\0".join(map(squeeze, unwrap(typed)))  # as pages are read
        leaks += scan(text_files(folder), tests, public, own)
    return leaks


def _sources(path: Path, *, locked: bool = True) -> list[str]:
    """Return the sources of a notebook's cells; of those alone that are a learner's own."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [
            "".join(cell["source"])
            for cell in cells
            if locked or not cell["metadata"].get("nbgrader", {}).get("locked")
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
