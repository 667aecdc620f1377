"""What learners wrote, as HTML that does nothing: it cannot run, load, or pose as a page's own.

Markdown is made HTML first and cleaned then: what looks harmless in Markdown need not be so in
HTML, and HTML escaped in Markdown is no Markdown any more. These are filters of nbconvert's
templates, for feedback and for formgrader (nbgrader_config.py sets them).
"""

import html
import re
from typing import Any

from bleach.css_sanitizer import CSSSanitizer
from bleach.sanitizer import ALLOWED_TAGS, Cleaner
from jinja2 import pass_context
from mistune import import_plugin
from nbconvert.exporters.exporter import ResourcesDict
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor

from llmcourse.grading.formulas import mathml

# Characters, of one text and of all on a page: mistune and html5lib take, of some texts, time
# quadratic in the length, 2 s for the longest. What is longer is shown as it was typed.
LONGEST, MOST = 20_000, 300_000
SHOWN = {"text/plain", "text/latex", "text/html", "text/markdown", "image/png", "image/jpeg"}
PLUGINS = [  # nbconvert's without the one that makes an <input>, and tables in a block quote
    import_plugin(name)
    for name in (
        "strikethrough",
        "table",
        "mistune.plugins.table.table_in_quote",
        "url",
        "def_list",
    )
]
TAGS = ALLOWED_TAGS | {
    "br", "caption", "dd", "del", "details", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5",
    "h6", "hr", "img", "kbd", "p", "pre", "s", "span", "sub", "summary", "sup", "table",
    "tbody", "td", "tfoot", "th", "thead", "tr", "u",
}  # fmt: skip
# What an attribute may hold, as it is written: `&` may stand for anything but in a web address.
NUMBER = re.compile(r"\d{1,4}%?")
LINK = re.compile(
    r"(?i)(?:https?://|mailto:)[^\s\\]*|#[^:&]*|[\w-]+(?:[./][\w-]+)*(?:#[^:&]*)?"
)
# No picture from elsewhere, not from up the path either: to load is to tell, or to log out.
PICTURE = re.compile(
    r"data:image/(?:png|jpeg|gif);base64,[A-Za-z0-9+/=]*|[\w-]+(?:[./][\w-]+)*"
)
CLASS = re.compile(
    r"highlight|dataframe|language-[\w+-]+|[a-z]{1,2}\d?|err"
)  # the last: Pygments'
OPEN, CLOSE = "\ue000", "\ue001"  # around the number of a formula
ATTRIBUTES = {
    "href": LINK, "src": PICTURE, "class": CLASS, "width": NUMBER, "height": NUMBER,
    "colspan": NUMBER, "rowspan": NUMBER, "start": NUMBER, "style": re.compile(r".*", re.S),
    "alt": re.compile(r".*", re.S), "title": re.compile(r".*", re.S),
}  # fmt: skip


def _allowed(tag: str, name: str, value: str) -> bool:
    return name in ATTRIBUTES and bool(ATTRIBUTES[name].fullmatch(value))


_cleaner = Cleaner(
    tags=TAGS,
    attributes=_allowed,
    protocols={"http", "https", "mailto", "data"},
    css_sanitizer=CSSSanitizer(allowed_css_properties=["text-align"]),
)


@pass_context
def clean(context: Any, source: Any) -> str:
    """Return HTML without all that is not named above; other elements stand there as text."""
    text = source.decode() if isinstance(source, bytes) else str(source)
    return _clean(text) if _affordable(context, text) else plain(text)


@pass_context
def markdown(context: Any, source: str) -> str:
    """Return Markdown as clean HTML; as it was typed, where it cannot be rendered."""
    if not _affordable(context, source):
        return plain(source)
    try:
        return _render(source, context.get("cell", {}).get("attachments", {}))
    except Exception:  # of mistune, of nbconvert; a page is not lost for a missing attachment
        return plain(source)


def _render(source: str, attachments: dict[str, dict[str, str]]) -> str:
    """Return Markdown as clean HTML; pictures and formulas come into it when it is clean."""
    pictures = _pictures(attachments)
    numbers = {name: {"image/png": f"{i:08}"} for i, name in enumerate(pictures)}
    renderer = Renderer(numbers)
    page = MarkdownWithMath(renderer, plugins=PLUGINS).render(source)
    if len(page) > 10 * LONGEST:
        return plain(source)
    page = _clean(page)
    for i, picture in enumerate(pictures.values()):
        page = page.replace(f'src="data:image/png;base64,{i:08}"', f'src="{picture}"', 1)
    return re.sub(f"{OPEN}\\d+{CLOSE}", lambda mark: renderer.formulas.pop(mark[0], ""), page)


class Renderer(IPythonRenderer):
    """Puts a mark in the place of each formula that can be shown, until the page is clean."""

    def __init__(self, attachments: dict[str, dict[str, str]]) -> None:
        # No anchors: a heading that is named as a check would stand in for the check's own.
        super().__init__(False, attachments=attachments, exclude_anchor_links=True)
        self.formulas: dict[str, str] = {}

    def inline_math(self, body: str) -> str:
        """Return the mark of a formula, or its source."""
        return self._mark(mathml(body)) or super().inline_math(body)

    def block_math(self, body: str) -> str:
        """Return the mark of a formula on a line of its own, or its source."""
        return self._mark(mathml(body, display=True)) or super().block_math(body)

    def _mark(self, formula: str | None) -> str:
        if formula is None:
            return ""
        mark = f"{OPEN}{len(self.formulas)}{CLOSE}"
        self.formulas[mark] = formula
        return mark


def _affordable(context: Any, text: str) -> bool:
    """Say whether a text may be rendered: it is short, and so is what its page has so far."""
    resources = context["resources"]
    resources["rendered"] = resources.get("rendered", 0) + len(text)
    return len(text) <= LONGEST and resources["rendered"] <= MOST


def _clean(text: str) -> str:
    # A reference to character 10^5000 is for Python's parsers of HTML no number, but an error.
    return str(_cleaner.clean(re.sub(r"&#(?=\d{8})", "&amp;#", text)))


def plain(text: str) -> str:
    """Return text as HTML that shows it as it is."""
    return f"<pre>{html.escape(text)}</pre>"


def _pictures(attachments: Any) -> dict[str, str]:
    """Return attached pictures by name, as addresses that hold them."""
    found = {}
    for name, kinds in attachments.items():
        for kind in ("image/png", "image/jpeg", "image/gif"):
            address = f"data:{kind};base64,{''.join(str(kinds.get(kind)).split())}"
            if kind in kinds and PICTURE.fullmatch(address):
                found[name] = address
    return found


def unchanged(text: str) -> str:
    """Stand in for `strip_files_prefix`, which makes a script of files/javascript:."""
    return text


class HarmlessOutputs(NbGraderPreprocessor):
    """Keep of outputs the kinds that can be shown, and no wish but a picture's size."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Return the cell with such outputs."""
        for out in cell.get("outputs", []):
            if "data" in out:
                kept = {kind: value for kind, value in out.data.items() if kind in SHOWN}
                other = {"text/plain": f"(not shown: {', '.join(out.data)})"}
                out.data = NotebookNode(kept or other)
                wishes = out.get("metadata", {})
                out.metadata = NotebookNode(
                    {kind: _size(wishes.get(kind)) for kind in out.data}
                )
        return cell, resources


def _size(wishes: Any) -> NotebookNode:
    """Return a width and a height: the templates write them without quotes."""
    found = wishes if isinstance(wishes, dict) else {}
    return NotebookNode(
        {name: found[name] for name in ("width", "height") if type(found.get(name)) is int}
    )
