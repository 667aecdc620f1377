"""The book's figures: one visual language, inline SVG that follows the page's theme.

    fig, ax = plots.figure()
    plots.line(ax, lengths, seconds, "softmax", label="with a cache")
    plots.show(fig, name="fig-cost", caption="...", alt="...")

Black means "the page's text colour" and white "the page's background", in both themes.
Importing this package sets matplotlib's defaults to the book's style.
"""

from llmcourse.plots.page import animate, show
from llmcourse.plots.style import (
    COLOURS,
    DASHES,
    MARKERS,
    boxes,
    figure,
    heatmap,
    legend,
    line,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "MARKERS",
    "animate",
    "boxes",
    "figure",
    "heatmap",
    "legend",
    "line",
    "show",
]
