"""Chapters and pages as text: what the laws of their form look at."""

import ast
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
COURSE = yaml.safe_load((BOOK / "chapters.yml").read_text(encoding="utf-8"))
FENCE = re.compile(r"^(`{3,}|~{3,}|:{3,})(.*)$")
LANGUAGES = ("", "python", "bash", "text", "console", "{code", "{literalinclude", "{math")
# Words that keep their capital inside a heading.
PROPER = {"Python", "English", "Kimi", "Linear", "Delta", "Attention", "I", "K3", "Unicode"}


@dataclass(frozen=True)
class Chapter:
    """One chapter's notebook and its row in chapters.yml."""

    row: dict[str, str]

    @property
    def path(self) -> Path:
        return BOOK / f"{self.row['number']}_{self.row['slug']}.ipynb"

    @cached_property
    def cells(self) -> list[dict]:
        return json.loads(self.path.read_text(encoding="utf-8"))["cells"]

    @property
    def code(self) -> list[dict]:
        return [cell for cell in self.cells if cell["cell_type"] == "code"]

    @property
    def markdown(self) -> str:
        texts = ["".join(c["source"]) for c in self.cells if c["cell_type"] == "markdown"]
        return "\n\n".join(texts)

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions with these last names, in all code cells."""
        found = []
        for cell in self.code:
            for node in ast.walk(ast.parse("".join(cell["source"]))):
                name = getattr(node, "func", None)
                name = getattr(name, "attr", getattr(name, "id", None))
                if isinstance(node, ast.Call) and name in names:
                    found.append(node)
        return found


def chapters() -> list[Chapter]:
    return [c for c in map(Chapter, COURSE) if c.path.exists()]


def prose(markdown: str) -> list[str]:
    """The lines of running text: no code, mathematics, tables, comments, directive options."""
    lines, fences = [], []
    mathematics = front = False
    for number, line in enumerate(markdown.splitlines()):
        text = line.strip()
        if text == "---" and (number == 0 or front):
            front = not front
            continue
        fence = FENCE.match(text)
        if fence and not mathematics:
            closing = fences and not fence[2].strip() and text.startswith(fences[-1][0])
            fences.pop() if closing else fences.append((fence[1], fence[2].strip()))
            continue
        hidden = any(name.startswith(LANGUAGES[1:]) or not name for _, name in fences)
        if text.startswith("$$"):
            mathematics = not mathematics and not (len(text) > 2 and "$$" in text[2:])
            continue
        if front or hidden or mathematics or text.startswith(("|", "%", ":", "(")) or not text:
            continue
        lines.append(text)
    return lines


def headings(markdown: str) -> list[str]:
    """The headings, without their hashes."""
    return [line.lstrip("#").strip() for line in prose(markdown) if line.startswith("#")]


def plain(line: str) -> str:
    """A line without its roles, code, formulas and links: each stands as one small word."""
    line = re.sub(r"\{[\w:-]+\}`[^`]*`|`[^`]*`|\$[^$]*\$", "it", line)
    line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line)
    return re.sub(r"[*_]{1,2}", "", line)


def two_sentences(line: str) -> bool:
    """Whether a sentence ends inside the line; a quotation or a name in bold may end there."""
    text = re.sub(r"^(\d+\.|[-*+])\s+", "", line)
    text = plain(re.sub(r"^\*\*[^*]+\.\*\*", "", text))
    text = re.sub(
        r"\b(e\.g|i\.e|cf|vs|al|Fig|No|[A-Z])\.", "", re.sub(r"\"[^\"]*\"", "it", text)
    )
    return re.search(r"[.?!][)'”]?\s+['“(]?[A-Z]", text) is not None


def capitals(heading: str) -> list[str]:
    """Words with a needless capital in a heading."""
    words = re.findall(r"[A-Za-z][\w-]*", plain(heading))
    return [
        word
        for word in words[1:]
        if word[0].isupper() and word not in PROPER and not re.search(r"\d|[A-Z]", word[1:])
    ]


MEASURED = re.compile(
    r"(?<![\w^-])\d[\d,.]*\s*(?:"
    r"(?:ns|µs|ms|s|min|seconds?|minutes?|[kMGT]?B/s|GFLOPS?/s|tokens? (?:a|per) second)\b"
    r"|%|percent\b|times (?:faster|slower|as fast|as slow|as long)\b)"
)


def measurements(line: str) -> list[str]:
    """What looks like a measured number that someone typed."""
    return MEASURED.findall(plain(line)) and [m[0] for m in MEASURED.finditer(plain(line))]
