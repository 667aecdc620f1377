"""The built site as a reader meets it, page by page, in a real browser."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from visits import SHOTS, Visit, settle

pytestmark = pytest.mark.browser
SCRIPTS = Path(__file__).parent


def test_page_loads_without_errors(visit: Visit) -> None:
    assert visit.errors == []
    assert visit.missing == []


def test_page_asks_no_other_host(visit: Visit) -> None:
    assert visit.foreign == []


def test_page_has_one_title_and_an_icon(visit: Visit) -> None:
    assert visit.page.locator("h1:visible").count() == 1
    icon = visit.page.locator("link[rel~=icon]").get_attribute("href")
    assert icon is not None and icon.endswith(".svg")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("device", ["narrow", "phone", "desktop"])
def test_nothing_sticks_out_sideways(visit: Visit, device: str, theme: str) -> None:
    visit.show(theme, device)
    SHOTS.mkdir(parents=True, exist_ok=True)
    name = visit.name.removesuffix(".html").replace("/", "-")
    visit.page.screenshot(path=SHOTS / f"{name}-{theme}-{device}.png", full_page=True)
    sticking = visit.page.evaluate((SCRIPTS / "sticking_out.js").read_text(encoding="utf-8"))
    assert sticking == []


def test_mathematics_is_set(visit: Visit) -> None:
    formulas = visit.page.locator("main .math")
    assert visit.page.locator("main mjx-container").count() >= formulas.count()
    assert formulas.filter(has_not=visit.page.locator("mjx-container")).count() == 0
    assert visit.page.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert (
        visit.page.evaluate(
            r"[...document.querySelectorAll('main p, main li, main td, main figcaption')]"
            r".map(e => e.innerText).filter(t => /\\\(|\\\[|\$\$/.test(t))"
        )
        == []
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_background(visit: Visit, theme: str) -> None:
    """WCAG AA, computed for every visible piece of text, in pictures too."""
    visit.show(theme, "desktop")
    visit.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    faint = visit.page.evaluate((SCRIPTS / "faint_text.js").read_text(encoding="utf-8"))
    assert faint == []


@pytest.mark.parametrize(("theme", "device"), [("light", "phone"), ("dark", "desktop")])
def test_axe_finds_nothing_serious(visit: Visit, theme: str, device: str) -> None:
    visit.show(theme, device)
    # What is inside a picture or a formula is hidden behind its name, or its MathML.
    found = Axe().run(
        visit.page,
        context={"exclude": [["figure svg > *"], ["mjx-math"]]},
        options={"preload": False, "resultTypes": ["violations"]},
    )
    serious = [
        f"{rule['id']}: {rule['help']}: {node['html'][:160]}"
        for rule in found.response["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
    assert serious == []


def test_search_page_finds_a_word(fresh: Page) -> None:
    fresh.goto("search.html?q=softmax")
    hits = fresh.locator("#search-results ul.search li a")
    expect(hits.first).to_be_visible()
    assert "glossary" in " ".join(hits.evaluate_all("links => links.map(a => a.href)"))


def test_search_box_opens_with_the_keyboard(fresh: Page) -> None:
    fresh.goto("book/index.html")
    settle(fresh)
    fresh.keyboard.press("Control+k")
    field = fresh.locator("#pst-search-dialog input[type=search]")
    expect(field).to_be_focused()
    field.fill("perplexity")
    fresh.keyboard.press("Enter")
    expect(fresh.locator("#search-results ul.search li").first).to_be_visible()


def test_theme_switch_is_remembered(fresh: Page) -> None:
    fresh.emulate_media(color_scheme="light")
    fresh.goto("book/index.html")
    settle(fresh)
    assert fresh.evaluate("document.documentElement.dataset.theme") == "light"
    fresh.locator("button.theme-switch-button").first.click()
    assert fresh.evaluate("document.documentElement.dataset.theme") == "dark"
    fresh.goto("book/glossary.html")
    assert fresh.evaluate("document.documentElement.dataset.theme") == "dark"


def test_theme_follows_the_system_before_any_choice(fresh: Page) -> None:
    fresh.emulate_media(color_scheme="dark")
    fresh.goto("book/index.html", wait_until="commit")
    fresh.wait_for_selector(".bd-article h1")
    assert fresh.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_long_name_in_prose_breaks_on_a_phone(fresh: Page) -> None:
    fresh.set_viewport_size({"width": 320, "height": 800})
    fresh.goto("book/glossary.html")
    fresh.evaluate(
        "document.querySelector('main p span.pre').textContent = 'a_long_name'.repeat(9)"
    )
    assert fresh.evaluate((SCRIPTS / "sticking_out.js").read_text(encoding="utf-8")) == []


def test_paper_is_white_and_code_keeps_its_ends(fresh: Page) -> None:
    """Printed from the dark theme: the light one, long lines wrapped, and dark again after."""
    fresh.emulate_media(color_scheme="dark")
    fresh.goto("book/01_tokens.html")
    settle(fresh)
    fresh.emulate_media(media="print", color_scheme="dark")
    fresh.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert fresh.evaluate("document.documentElement.dataset.theme") == "light"
    code = fresh.locator("div.highlight > pre").first
    assert code.evaluate("e => getComputedStyle(e).whiteSpace") == "pre-wrap"
    assert fresh.locator(".plot-controls:visible").count() == 0
    fresh.evaluate("dispatchEvent(new Event('afterprint'))")
    assert fresh.evaluate("document.documentElement.dataset.theme") == "dark"


def test_keyboard_focus_is_visible(fresh: Page) -> None:
    """The first twenty stops of the Tab key each draw an outline."""
    fresh.goto("book/index.html")
    settle(fresh)
    bare = []
    for _ in range(20):
        fresh.keyboard.press("Tab")
        stop = fresh.evaluate(
            "() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.outerHTML.slice(0, 120), s.outlineStyle, parseFloat(s.outlineWidth),"
            " s.boxShadow] }"
        )
        if (stop[1] == "none" or stop[2] == 0) and stop[3] == "none":
            bare.append(stop[0])
    assert bare == []


def test_phone_menu_opens_and_closes(fresh: Page) -> None:
    fresh.set_viewport_size({"width": 390, "height": 844})
    fresh.goto("book/index.html")
    settle(fresh)
    fresh.locator("button.primary-toggle").first.click()
    link = fresh.locator("#pst-primary-sidebar-modal a", has_text="Glossary")
    expect(link).to_be_visible()
    fresh.keyboard.press("Escape")
    expect(link).not_to_be_visible()


@pytest.fixture
def animated(site: Path) -> list[str]:
    """The pages that hold an animation."""
    found = [
        str(file.relative_to(site))
        for file in sorted((site / "book").glob("*.html"))
        if 'class="plot-controls"' in file.read_text(encoding="utf-8")
    ]
    assert found, "no page has an animation"
    return found


def test_animations_obey_the_keyboard(fresh: Page, animated: list[str]) -> None:
    for name in animated:
        fresh.goto(name)
        settle(fresh)
        for controls in fresh.locator(".plot-controls").all():
            slider, words = controls.locator("input[type=range]"), controls.locator("span")
            slider.focus()
            fresh.keyboard.press("Home")
            first = words.inner_text()
            fresh.keyboard.press("ArrowRight")
            assert words.inner_text() != first, f"{name}: the slider moves nothing"
            play = controls.get_by_role("button", name="Play")
            play.focus()
            fresh.keyboard.press("Enter")
            stop = controls.get_by_role("button", name="Pause")
            expect(stop).to_be_visible()
            fresh.keyboard.press("Enter")
            expect(play).to_be_visible()


def test_animations_stay_still_where_motion_is_unwelcome(
    fresh: Page, animated: list[str]
) -> None:
    fresh.emulate_media(reduced_motion="reduce")
    for name in animated:
        fresh.goto(name)
        settle(fresh)
        words = fresh.locator(".plot-controls span")
        before = words.all_inner_texts()
        fresh.wait_for_timeout(1200)
        assert words.all_inner_texts() == before
        assert fresh.locator(".plot-controls").get_by_role("button", name="Play").count() == 0
