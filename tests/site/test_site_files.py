"""The built site as files: complete, self-contained, small."""

import gzip
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from visits import pages

pytestmark = pytest.mark.slow  # needs the built site
MB = 1_000_000
ASSETS, PAGE = 1.3 * MB, 1.0 * MB  # compressed, as a server would send them
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Links(HTMLParser):
    """What a page loads, where it leads, and the places in it that can be led to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag in LOADS and LOADS[tag] in values:
            self.loads.append(values[LOADS[tag]])
        if tag == "a" and "href" in values:
            self.leads.append(values["href"])


@cache
def links(file: Path) -> Links:
    parser = Links()
    parser.feed(file.read_text(encoding="utf-8"))
    return parser


def compressed(file: Path) -> int:
    return len(gzip.compress(file.read_bytes()))


@pytest.fixture(params=pages())
def page(request: pytest.FixtureRequest, site: Path) -> Path:
    return site / request.param


def test_every_promised_page_is_there(page: Path) -> None:
    assert page.is_file()


def test_page_loads_only_files_of_the_site(page: Path) -> None:
    for url in links(page).loads:
        parts = urlsplit(url)
        assert not parts.netloc and parts.scheme in ("", "data"), f"{page.name} loads {url}"
        if parts.path and not parts.scheme:
            assert (page.parent / unquote(parts.path)).exists(), f"{page.name} lacks {url}"


def test_style_sheets_load_only_files_of_the_site(site: Path) -> None:
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        for url in re.findall(r"url\([\"']?([^\"')]+)", text) + re.findall(
            r"@import\s+[\"']([^\"']+)", text
        ):
            assert not re.match(r"(https?:)?//", url), f"{sheet.name} loads {url}"


def test_links_lead_somewhere(page: Path, site: Path) -> None:
    broken = []
    for url in links(page).leads:
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            continue
        target = page.parent / unquote(parts.path) if parts.path else page
        fragment = unquote(parts.fragment)
        if not target.exists() or (
            fragment and target.suffix == ".html" and fragment not in links(target).places
        ):
            broken.append(url)
    assert broken == []


def test_page_shows_no_warning_and_no_traceback(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r'class="output (?:stderr|traceback)[^>]*>.{0,300}', text, re.DOTALL)
    assert shown == []


def test_page_prints_no_object_by_its_address(page: Path) -> None:
    """A last line whose value nobody meant to show: `<matplotlib.patches.Patch at 0x7f...>`."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"&lt;[\w.]+ (?:object )?at 0x\w+&gt;", text) == []


def test_page_is_small(page: Path, site: Path) -> None:
    pictures = {
        (page.parent / unquote(urlsplit(url).path)).resolve()
        for url in links(page).loads
        if "_images/" in url
    }
    assert compressed(page) + sum(map(compressed, pictures)) <= PAGE


def test_shared_assets_are_small(site: Path) -> None:
    sizes = {file: compressed(file) for file in (site / "_static").rglob("*") if file.is_file()}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert sum(sizes.values()) <= ASSETS, [(file.name, size) for file, size in largest]
