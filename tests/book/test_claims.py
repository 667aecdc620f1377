"""Every claim that a chapter lists names a cell that exists, or an entry of a bibliography."""

import re

import pytest
from prose import BOOK, chapters

CLAIMS = sorted((BOOK / "claims").glob("*.md"))
KEYS = set(re.findall(r"^@\w+\{([\w-]+),", (BOOK / "references.bib").read_text(), re.MULTILINE))


def faults(text: str, cells: set[str]) -> list[str]:
    """What is wrong with a table of claims: rows without a source, names that do not exist."""
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    found = [] if rows else ["no claims"]
    for row in rows:
        *_, shown = (part.strip() for part in row.strip("| ").split(" | "))
        plain = re.sub(r"\([^)]*\)", "", shown)
        for source in re.split(r"[;,] (?=cell |cite )", plain):
            kind, _, names = source.strip().partition(" ")
            known = {"cell": cells, "cite": KEYS}.get(kind, set())
            for name in (name.split()[0] for name in names.split(",") if name.strip()):
                if name not in known:
                    found.append(f"{row[:60]}: {kind} {name}")
            if not names.strip():
                found.append(f"{row[:60]}: {shown}")
    return found


def test_chapters_from_the_fifth_on_list_their_claims() -> None:
    needed = {c.path.stem for c in chapters() if c.row["number"] >= "05"}
    assert {p.stem for p in CLAIMS} == needed


@pytest.mark.parametrize("path", CLAIMS, ids=lambda p: p.stem)
def test_every_claim_has_a_source(path) -> None:
    (chapter,) = (c for c in chapters() if c.path.stem == path.stem)
    assert faults(path.read_text(encoding="utf-8"), {c["id"] for c in chapter.cells}) == []


def test_faults_are_found() -> None:
    head = "| claim | shown by |\n| --- | --- |\n"
    assert faults(head, {"a"}) == ["no claims"]
    assert faults(head + "| One. | cell a, b |", {"a"}) == ["| One. | cell a, b |: cell b"]
    assert faults(head + "| One. | cite nobody |", {"a"})
    assert faults(head + "| One. | everybody knows |", {"a"})
    assert faults(head + "| One. | cell a; cite ali2026 (as told) |", {"a"}) == []
