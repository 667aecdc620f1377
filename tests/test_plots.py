"""Figures: legible for everyone, in both themes, and the same bytes each time."""

import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from llmcourse import plots
from llmcourse.plots import comparison, page

BACKGROUNDS = ["#ffffff", "#fdfdfb", "#121212", "#14181e"]  # the pages; the theme's dark one


@pytest.fixture
def shown(monkeypatch):
    """What was displayed, as a list of mime bundles."""
    bundles: list[dict[str, str]] = []
    monkeypatch.setattr(page, "display", lambda bundle, raw: bundles.append(bundle))
    return bundles


def simple(name="fig-x", alt="A line that rises.", caption="A line."):
    fig, ax = plots.figure()
    plots.line(ax, [1, 2, 3], [1, 4, 9], "softmax", label="growth")
    ax.set_xlabel("tokens")
    ax.fill_between([1, 2], [0, 0], [1, 1], color="black")
    plots.legend(ax)
    plots.show(fig, alt=alt, caption=caption, name=name)


def draw(ax, n):
    plots.heatmap(ax, np.eye(4)[: n + 1], limit=1, columns=list("abcd"))
    ax.set_xlabel("position")
    return f"step </script> {n}"


def player(name="fig-film", frames=4, **options):
    plots.animate(
        draw, range(frames), alt="Cells fill.", caption="Cells.", name=name, **options
    )


# --- colours -------------------------------------------------------------------------------


def linear_rgb(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    """WCAG 2.2's contrast ratio."""
    one, two = (linear_rgb(c) @ [0.2126, 0.7152, 0.0722] + 0.05 for c in (a, b))
    return max(one, two) / min(one, two)


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def distance(a, b, vision):
    """Distance in Oklab, where 0.02 is about a just noticeable difference side by side."""
    seen = [np.clip(np.array(VISION[vision]) @ linear_rgb(c), 0, 1) for c in (a, b)]
    one, two = (TO_LAB @ np.cbrt(TO_LMS @ c) for c in seen)
    return float(np.linalg.norm(one - two))


def test_the_contrast_formula_knows_black_on_white():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("kind", plots.COLOURS)
def test_every_colour_stands_out_from_both_pages(kind, background):
    assert contrast(plots.COLOURS[kind], background) >= 3


@pytest.mark.parametrize("vision", VISION)
def test_colours_of_memories_stay_apart_for_every_kind_of_vision(vision):
    kinds = [k for k in plots.COLOURS if k != "neutral"]
    for a, b in itertools.combinations(kinds, 2):
        far = distance(plots.COLOURS[a], plots.COLOURS[b], vision)
        assert far >= 0.08, f"{a} and {b} are {far:.3f} apart for {vision} vision"


def test_red_and_green_would_be_refused():
    assert distance("#b05030", "#7a7030", "deutan") < 0.08


def test_markers_and_dashes_are_a_second_code():
    assert len(set(plots.MARKERS.values())) == len(plots.COLOURS)
    assert len(set(map(str, plots.DASHES.values()))) == len(plots.COLOURS)


# --- figures -------------------------------------------------------------------------------


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def values(self, attribute):
        return [a[attribute] for _, a in self.tags if attribute in a]


@pytest.mark.parametrize("missing", ["alt", "caption"])
def test_a_figure_needs_words(shown, missing):
    with pytest.raises(ValueError, match=missing):
        simple(**{missing: " "})
    with pytest.raises(ValueError, match=missing):
        simple(**{missing: None})
    with pytest.raises(ValueError, match=missing):
        plots.animate(draw, [0], name="x", **({"alt": "a", "caption": "c"} | {missing: ""}))
    assert not shown


@pytest.mark.parametrize("name", ["", "two words", "1st", 'a"b', "café", "line\n", None])
def test_a_name_must_be_an_id(shown, name):
    with pytest.raises(ValueError, match="name"):
        simple(name=name)


def test_the_words_are_in_the_page_and_escaped(shown):
    simple(alt='less "<" more', caption="a < b & c")
    html = shown[0]["text/html"]
    assert 'less "<" more' in Page(html).values("aria-label")
    assert "<figcaption>a &lt; b &amp; c</figcaption>" in html
    assert shown[0]["text/plain"] == 'less "<" more'


@pytest.mark.parametrize("make", [simple, player])
def test_nothing_is_fetched_from_anywhere(shown, make):
    make()
    html = shown[0]["text/html"]
    links = Page(html).values("href") + Page(html).values("src")
    assert links and all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not re.search(r"url\((?!#)|@import|<link|<!DOCTYPE|<\?xml", html)
    assert re.findall(r"https?://[^\"]*", html) == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("make", [simple, player])
def test_text_takes_the_colour_of_the_page(shown, make):
    make()
    html = shown[0]["text/html"]
    svg = html[html.index("<svg") : html.index("</svg>")]
    used = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert used <= set(plots.COLOURS.values()) and 'fill="currentColor"' in svg
    assert "stroke:currentColor" in svg
    texts = [a for tag, a in Page(svg).tags if tag == "text"]
    assert texts and not any("fill" in a or "fill" in a.get("style", "") for a in texts)


def test_text_stays_text_and_can_grow_on_a_small_screen(shown):
    simple()
    html = shown[0]["text/html"]
    assert ">tokens</text>" in html and "var(--plot-text,1)" in html


def test_ids_are_the_figures_own_and_every_reference_is_met(shown):
    simple("fig-one")
    simple("fig-two")
    player("fig-three")
    ids = [set(Page(b["text/html"]).values("id")) for b in shown]
    for a, b in itertools.combinations(ids, 2):
        assert not a & b
    for own, bundle in zip(ids, shown, strict=True):
        html = bundle["text/html"]
        found = set(re.findall(r'(?:url\(|href=")#([\w-]+)', html))
        assert found and found <= own
        assert len(own) == len(Page(html).values("id")), "an id appears twice"


@pytest.mark.parametrize("make", [simple, player])
def test_the_same_figure_is_the_same_bytes(shown, make):
    make()
    make()
    assert shown[0] == shown[1]


def test_no_rule_of_a_figure_reaches_the_rest_of_the_page(shown):
    simple()
    for style in re.findall(r"<style[^>]*>(.*?)</style>", shown[0]["text/html"], re.S):
        for selector in re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]*\{", "", style)):
            assert ".plot" in selector


# --- kinds of drawing ----------------------------------------------------------------------


def test_a_heat_map_is_empty_at_zero_and_full_at_the_limit():
    _, ax = plots.figure()
    plots.heatmap(ax, [[0.0, 2.0], [-2.0, np.nan]], numbers=".0f")
    cells = ax.images[0].get_array()
    assert cells[..., 3].tolist() == [[0, 1], [1, 0]]
    assert not np.allclose(cells[0, 1, :3], cells[1, 0, :3])
    assert [t.get_text() for t in ax.texts] == ["0", "2", "−2"]


@pytest.mark.parametrize("matrix", [np.zeros((2, 2)), np.full((2, 2), np.nan)])
def test_a_heat_map_of_nothing_is_empty(matrix):
    _, ax = plots.figure()
    plots.heatmap(ax, matrix)
    assert not ax.images[0].get_array()[..., 3].any()


@pytest.mark.parametrize(
    "matrix, options, message",
    [
        (np.zeros((0, 3)), {}, "matrix has shape"),
        ([[np.inf, 1.0]], {}, "infinite"),
        ([[1.0]], {"limit": 0}, "limit is 0"),
        ([[1.0]], {"limit": -1}, "limit is -1"),
        ([[1.0]], {"rows": ["a", "b"]}, "rows has 2 names; the matrix has 1 rows"),
        ([[1.0, 2.0]], {"columns": ["a"]}, "columns has 1 names"),
    ],
)
def test_what_makes_no_heat_map_is_refused(matrix, options, message):
    _, ax = plots.figure()
    with pytest.raises(ValueError, match=message):
        plots.heatmap(ax, matrix, **options)


def test_a_heat_map_takes_tensors_of_any_kind():
    for options in ({"dtype": torch.bfloat16}, {"requires_grad": True}):
        _, ax = plots.figure()
        plots.heatmap(ax, torch.ones(2, 3, **options))
        assert ax.images[0].get_array()[..., 3].all()


def test_an_arrow_to_a_box_that_is_not_there_is_refused():
    _, ax = plots.figure()
    with pytest.raises(ValueError, match="'b', which is no box"):
        plots.boxes(ax, {"a": (0, 0, "A")}, [("a", "b")])


@pytest.mark.filterwarnings("ignore:Glyph")  # no font has it, which is the point
def test_a_character_that_no_page_can_hold_is_replaced(shown):
    fig, ax = plots.figure()
    ax.set_title("a\x01b")
    plots.show(fig, alt="a", caption="c", name="x")
    assert "a\N{REPLACEMENT CHARACTER}b" in shown[0]["text/html"]


def test_wrong_kinds_and_shapes_are_named():
    _, ax = plots.figure()
    with pytest.raises(ValueError, match=r"'softmx'.*softmax"):
        plots.line(ax, [1], [1], "softmx")
    with pytest.raises(ValueError, match=r"\(3,\)"):
        plots.heatmap(ax, [1, 2, 3])


def test_a_diagram_has_its_boxes_and_arrows():
    _, ax = plots.figure()
    two = {"a": (0, 0, "one"), "b": (3, 0, "two", "mla")}
    drawn = plots.boxes(ax, two, [("a", "b", "then")])
    assert list(drawn) == ["a", "b"] and len(ax.patches) == 3
    assert [t.get_text() for t in ax.texts] == ["one", "two", "then"]


# --- the player ----------------------------------------------------------------------------


def test_a_film_costs_little_more_than_what_changes(shown):
    player(frames=1)
    player(frames=30)
    one, many = (len(b["text/html"]) for b in shown)
    assert many < 4 * one


def test_without_javascript_the_first_frame_is_there_and_no_dead_control(shown):
    player(first=2)
    tags = Page(shown[0]["text/html"]).tags
    visible = [a["data-f"].split() for _, a in tags if "data-f" in a and "display" not in a]
    assert visible and all("2" in frames for frames in visible)
    assert [a for _, a in tags if a.get("class") == "plot-controls" and "hidden" in a]


@pytest.mark.parametrize("seconds", [0, -1, 0.1, float("nan")])
def test_a_film_that_would_flash_is_refused(shown, seconds):
    with pytest.raises(ValueError, match="seconds is"):
        player(seconds=seconds)


def test_a_film_without_frames_is_refused(shown):
    with pytest.raises(ValueError, match="0 frames"):
        plots.animate(draw, [], alt="a", caption="c", name="x")


@pytest.mark.parametrize("name", ["LABELS", "PERIOD", "xNAMEx"])
def test_a_films_name_is_never_taken_for_a_blank_of_its_script(shown, name):
    player(name)
    assert f"""querySelectorAll('[id="{name}"]')""" in shown[0]["text/html"]


def test_a_first_frame_that_is_not_there_is_refused(shown):
    with pytest.raises(ValueError, match="first is 9"):
        player(first=9)


@pytest.mark.browser
def test_players_step_play_and_stop_independently(shown, browser):
    player("film-a", seconds=0.4)
    player("film-b")
    tab = browser.new_page()
    tab.set_content("".join(b["text/html"] for b in shown))
    one, two = tab.locator("#film-a"), tab.locator("#film-b")
    shows = one.locator("[data-f]:visible").first
    assert one.locator("span").inner_text() == "1 of 4: step </script> 0"
    one.get_by_role("button", name="Next").click()
    assert one.locator("span").inner_text().startswith("2 of 4")
    assert "1" in shows.get_attribute("data-f").split()
    assert two.locator("span").inner_text().startswith("1 of 4")
    one.get_by_role("slider").press("End")
    assert one.locator("span").inner_text().startswith("4 of 4")
    one.get_by_role("button", name="Play").click()  # from the beginning, stops at the end
    one.get_by_role("button", name="Play").wait_for()
    assert one.locator("span").inner_text().startswith("4 of 4")
    assert one.get_by_role("slider").get_attribute("aria-valuetext").startswith("4 of 4")


@pytest.mark.browser
def test_nothing_moves_for_whoever_asks_for_stillness(shown, browser):
    player("film-a", seconds=0.4)
    tab = browser.new_page(reduced_motion="reduce")
    tab.set_content(shown[0]["text/html"])
    assert not tab.get_by_role("button", name="Play").is_visible()
    tab.get_by_role("button", name="Next").click()
    assert tab.locator("span").inner_text().startswith("2 of 4")


# --- the running comparison ----------------------------------------------------------------

PLACES = [("mqar", 2, 0), ("mqar", 8, 0), ("diary", 4, 0), ("diary", 4, 6)]
ACCURACY = {("softmax", 0): 0.8, ("softmax", 1): 1.0, ("delta", 0): 0.5, ("delta", 1): 0.6}
FILES = {
    "recall": [
        {
            "memory": kind,
            "seed": seed,
            "accuracy": a,
            "task": t,
            "num_facts": n,
            "num_updates": u,
        }
        for (kind, seed), a in ACCURACY.items()
        for t, n, u in PLACES
    ],
    "decoding": [
        {"memory": kind, "context": n, "bytes": size, "tokens_per_s": 9}
        for kind, size in [("softmax", 300), ("delta", 64)]
        for n in (256, 512)
    ],
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, rows in FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(comparison, "RESULTS", tmp_path)


def drawn(ax):
    return {
        line.get_label(): [list(line.get_xdata()), list(line.get_ydata())] for line in ax.lines
    }


def test_recall_shows_the_mean_over_seeds_of_every_kind_asked_for(files):
    pairs, updates = comparison.recall(["softmax", "delta"]).axes
    assert drawn(pairs) == {
        "softmax": [[2, 8], pytest.approx([0.9, 0.9])],
        "delta": [[2, 8], pytest.approx([0.55, 0.55])],
    }
    assert drawn(updates)["delta"] == [[0, 6], pytest.approx([0.55, 0.55])]
    assert [t.get_text() for t in pairs.get_xticklabels()] == ["2", "8"]
    (band,) = comparison.recall(["delta"]).axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.5, 0.6))


def test_decoding_shows_bytes_and_speed_against_the_context(files):
    size, speed = comparison.decoding(["softmax"]).axes
    assert drawn(size) == {"softmax": [[256, 512], [300, 300]]}
    assert drawn(speed) == {"softmax": [[256, 512], [9, 9]]}


def test_one_line_looks_the_same_whoever_is_beside_it(files):
    alone, beside = (comparison.recall(k).axes[0] for k in (["delta"], ["softmax", "delta"]))
    looks = [
        (ax.lines[-1].get_color(), ax.lines[-1].get_marker(), ax.get_xlim(), ax.get_ylim())
        for ax in (alone, beside)
    ]
    assert looks[0] == looks[1]
    assert looks[0][:2] == (plots.COLOURS["delta"], plots.MARKERS["delta"])


def test_rows_are_those_that_were_wanted(files):
    assert len(comparison.rows("recall")) == 16
    found = comparison.rows("recall", memory="delta", task="diary", num_updates=6)
    assert [row["seed"] for row in found] == [0, 1]
    assert comparison.average(found, "num_updates", "accuracy") == {6: pytest.approx(0.55)}


def test_a_kind_or_a_file_without_results_is_named(files):
    for show in (comparison.recall, comparison.decoding):
        with pytest.raises(ValueError, match="kinds: got 'mla', which has no rows in results/"):
            show(["softmax", "mla"])
    with pytest.raises(FileNotFoundError, match=r"python benchmarks/speed\.py writes it"):
        comparison.rows("speed")


@pytest.mark.parametrize("name", ["recall", "decoding"])
def test_the_committed_results_can_be_shown(name, shown):
    kinds = list(dict.fromkeys(row["memory"] for row in comparison.rows(name)))
    fig = getattr(comparison, name)(kinds)
    plots.show(fig, name="fig-all", caption="All.", alt="One line for each memory.")
    picture = shown[0]["text/html"]
    assert "NaN" not in picture and all(kind in picture for kind in kinds)
