"""Figures and animations as HTML: alternative text, caption, a player without a library."""

import json
import math
import re
from collections.abc import Callable, Iterable
from html import escape
from typing import Any
from xml.etree.ElementTree import Element

from IPython.display import display
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from llmcourse.plots import svg
from llmcourse.plots.style import figure

MIN_SECONDS = 0.4  # a frame; more than three flashes a second can harm (WCAG 2.3.1)

# The theme paints HTML output white in dark mode; these figures follow the page instead.
STYLE = (
    ".text_html:has(.plot){background:none!important;color:inherit!important;"
    "padding:0!important}"
    ".plot{margin:1em 0;text-align:center}"
    ".plot figcaption{max-width:40em;margin:.4em auto;text-align:left}"
    ".plot-controls:not([hidden]){display:flex;flex-wrap:wrap;gap:.5em;align-items:center;"
    "justify-content:center;margin:.4em auto;max-width:36em}"
    ".plot-controls button{font:inherit;color:inherit;background:none;padding:.2em .7em;"
    "border:1px solid;border-radius:.3em;min-height:2.2em;cursor:pointer}"
    ".plot-controls input{flex:1 1 9em;min-width:0}"
    ".plot-controls span{flex:1 0 100%;text-align:center;min-height:1.5em}"
    "@media(max-width:480px){.plot{--plot-text:1.12}}"
)
PLAYER = """document.querySelectorAll('[id="NAME"]').forEach(root => {
  if (root.dataset.ready) return;
  root.dataset.ready = 1;
  const [bar, back, play, next, slider, words] =
    ["div", ".back", ".play", ".next", "input", "span"].map(s => root.querySelector(s));
  const labels = LABELS, last = labels.length - 1;
  const parts = [...root.querySelectorAll("[data-f]")].map(
    part => [part, new Set(part.dataset.f.split(" "))]);
  let timer = 0;
  const show = n => {
    slider.value = n = Math.min(last, Math.max(0, n));
    for (const [part, frames] of parts)
      part.setAttribute("display", frames.has(String(n)) ? "inline" : "none");
    words.textContent = `${n + 1} of ${last + 1}` + (labels[n] && ": " + labels[n]);
    slider.setAttribute("aria-valuetext", words.textContent);
    if (n === last) stop();
  };
  const stop = () => {
    clearInterval(timer); timer = 0; play.textContent = "Play";
    words.setAttribute("aria-live", "polite");
  };
  const start = () => {
    words.setAttribute("aria-live", "off"); play.textContent = "Pause";
    timer = setInterval(() => show(+slider.value + 1), PERIOD);
    show(+slider.value === last ? 0 : +slider.value);
  };
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const obey = () => { play.hidden = still.matches; if (still.matches) stop(); };
  still.addEventListener("change", obey);
  play.onclick = () => timer ? stop() : start();
  back.onclick = () => { stop(); show(+slider.value - 1); };
  next.onclick = () => { stop(); show(+slider.value + 1); };
  slider.oninput = () => { stop(); show(+slider.value); };
  bar.hidden = false; stop(); show(+slider.value); obey();
});"""


def show(fig: Figure, *, alt: str, caption: str, name: str) -> None:
    """Display a figure inline, as SVG in the page's own colours.

    alt: what the picture shows, for whoever cannot see it. caption: the text below, plain.
    name: its id on the page, unique there: letters, digits and hyphens.
    ValueError where one of them is missing.
    """
    _require(alt, caption, name)
    picture = svg.from_figure(fig, name)
    picture.set("role", "img")
    picture.set("aria-label", alt)
    _display(name, svg.text(picture), caption, alt)


def animate(
    draw: Callable[[Any, Any], str | None],
    frames: Iterable[Any],
    *,
    alt: str,
    caption: str,
    name: str,
    width: float = 6.0,
    height: float = 3.6,
    seconds: float = 0.9,
    first: int = 0,
    **subplots: Any,
) -> None:
    """Display frames with a slider, step and play buttons; nothing moves until asked.

    draw(ax, frame) draws one frame and may return words for it, shown beside the slider.
    seconds: how long a frame stays while playing. first: the frame shown at the beginning and
    without JavaScript. With reduced motion asked for by the reader there is no play button.
    alt, caption, name as in `show`; width, height and `subplots` as in `figure`.
    """
    _require(alt, caption, name)
    if not MIN_SECONDS <= seconds < math.inf:
        raise ValueError(f"seconds is {seconds}; it must be at least {MIN_SECONDS}")
    frames = list(frames)
    if not 0 <= first < len(frames):
        raise ValueError(f"first is {first}; it must be one of the {len(frames)} frames")
    pictures: list[Element] = []
    labels: list[str] = []
    places: list[Bbox] = []
    for frame in frames:
        fig, axes = figure(width, height, **subplots)
        labels.append(draw(axes, frame) or "")
        if not places:
            fig.draw_without_rendering()
            places = [ax.get_position() for ax in fig.axes]
        fig.set_layout_engine("none")  # all frames as the first: nothing jumps
        for ax, place in zip(fig.axes, places, strict=True):
            ax.set_position(place)
        pictures.append(svg.from_figure(fig, name))
    picture = svg.merge(pictures, first)
    picture.set("role", "img")
    picture.set("aria-label", alt)
    player = _player(name, labels, seconds, first)
    _display(name, svg.text(picture) + player, caption, alt)


def _player(name: str, labels: list[str], seconds: float, first: int) -> str:
    words = json.dumps(labels).replace("<", "\\u003c")
    blanks = {"NAME": name, "PERIOD": f"{seconds * 1000:.0f}", "LABELS": words}
    script = re.sub("NAME|PERIOD|LABELS", lambda blank: blanks[blank[0]], PLAYER)
    return (
        '<div class="plot-controls" role="group" aria-label="Animation" hidden>'
        '<button type="button" class="back">Back</button>'
        '<button type="button" class="play">Play</button>'
        '<button type="button" class="next">Next</button>'
        f'<input type="range" min="0" max="{len(labels) - 1}" value="{first}"'
        ' aria-label="Frame of the animation">'
        f"<span></span></div><script>{script}</script>"
    )


def _require(alt: str, caption: str, name: str) -> None:
    for what, value in (("alt", alt), ("caption", caption)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{what} is empty; every figure needs one")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ValueError(f"name is {name!r}; it needs letters, digits and hyphens")


def _display(name: str, body: str, caption: str, alt: str) -> None:
    html = (
        f'<figure class="plot" id="{name}"><style>{STYLE}</style>{body}'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
    display({"text/html": html, "text/plain": alt}, raw=True)
