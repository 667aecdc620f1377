"""A page of the built site in a browser, and the list of pages."""

from dataclasses import dataclass, field
from pathlib import Path

import yaml
from playwright.sync_api import Browser, Page, Response

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "_build" / "screenshots"
WIDTHS = {"narrow": (320, 640), "phone": (390, 844), "desktop": (1280, 900)}


def pages() -> list[str]:
    """Every page that the table of contents promises, and the search page."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    return [f"{name}.html" for name in [toc["root"], *files, "search"]]


@dataclass
class Visit:
    """One page, loaded once, with what went wrong on the way."""

    name: str
    page: Page
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def show(self, theme: str, device: str) -> None:
        """Give the window a size and the page a theme, as the page's own switch does."""
        width, height = WIDTHS[device]
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate(
            "async theme => {"
            " const page = document.documentElement.dataset;"
            " page.theme = page.mode = theme;"
            " for (const _ of [1, 2]) await new Promise(requestAnimationFrame);"
            " await Promise.allSettled(document.getAnimations().map(a => a.finished));"
            " }",
            theme,
        )


def settle(page: Page) -> None:
    """Wait until scripts are loaded and the mathematics is set."""
    page.wait_for_load_state("networkidle")
    page.evaluate("window.MathJax?.startup?.promise")


def open_page(browser: Browser, address: str, name: str) -> Visit:
    """Open a page in a fresh profile with reduced motion (pictures must not blur)."""
    width, height = WIDTHS["desktop"]
    context = browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    visit = Visit(name, context.new_page())

    def answered(response: Response) -> None:
        if response.status >= 400:
            visit.missing.append(f"{response.status} {response.url}")

    def asked(url: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            visit.foreign.append(url)

    visit.page.on("request", lambda request: asked(request.url))
    visit.page.on("response", answered)
    visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
    visit.page.on(
        "console",
        lambda said: visit.errors.append(said.text) if said.type in ("error", "warning") else 0,
    )
    visit.page.goto(address + name)
    settle(visit.page)
    return visit
