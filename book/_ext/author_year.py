"""A bibliography whose labels are author and year, as in the text, instead of numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pybtex.database import Entry, Person
from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style
from pybtex.style.labels import BaseLabelStyle
from sphinx.application import Sphinx


def _last(person: Person) -> str:
    names = [*person.prelast_names, *person.last_names]
    return " ".join(names).replace("{", "").replace("}", "").replace("\\", "")


def label(entry: Entry) -> str:
    """`Vaswani et al. 2017` for an entry of more than two authors."""
    names = [_last(person) for person in entry.persons["author"]]
    if len(names) > 2:
        names = [f"{names[0]} et al."]
    return f"{' and '.join(names)} {entry.fields['year']}"


class AuthorYearLabels(BaseLabelStyle):
    """Author and year; works that would share a label get a, b, c ... in the list's order."""

    def format_labels(self, sorted_entries: list[Entry]) -> Iterator[str]:
        labels = [label(entry) for entry in sorted_entries]
        total, seen = Counter(labels), Counter()
        for text in labels:
            seen[text] += 1
            yield text if total[text] == 1 else text + chr(ord("a") + seen[text] - 1)


class AuthorYearStyle(Style):
    """pybtex's plain style with these labels, sorted by author, year and title."""

    default_label_style = AuthorYearLabels
    default_sorting_style = "author_year_title"


def setup(app: Sphinx) -> dict[str, bool]:
    register_plugin("pybtex.style.formatting", "author_year", AuthorYearStyle)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
