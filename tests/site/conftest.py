"""The built site on a small local server, for the browser to look at."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from visits import ROOT, Visit, open_page, pages

SITE = ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site; `make test` builds it before the tests."""
    if not (SITE / "book" / "index.html").exists():
        pytest.fail("the site is not built: run `make book` first", pytrace=False)
    return SITE


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """The site's address on a free port of this machine."""
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module", params=pages())
def visit(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Visit]:
    """Each page in turn; all tests of one page share the load."""
    visit = open_page(browser, address, request.param)
    yield visit
    visit.page.context.close()


@pytest.fixture
def fresh(browser: Browser, address: str) -> Iterator[Page]:
    """A page of its own for a test that clicks about, with motion allowed."""
    context = browser.new_context(base_url=address)
    yield context.new_page()
    context.close()
