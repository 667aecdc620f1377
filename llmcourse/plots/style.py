"""Colours, markers and the few kinds of drawing that the chapters share."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

# One colour for each kind of memory, through the whole book. Found by a search that kept at
# least 3:1 against white and #14181e (so #121212 too) and pushed the closest pair apart for
# normal vision and three kinds of colour blindness; tests/test_plots.py computes both.
COLOURS = {
    "softmax": "#686cec",
    "linear": "#b74108",
    "delta": "#0f7457",
    "gated": "#9f3f98",
    "kda": "#ed5b91",
    "mla": "#01a0b1",
    "accent": "#8b9225",
    "neutral": "#7f7f7f",
}
# The second code, for whoever cannot tell the colours apart.
MARKERS = dict(zip(COLOURS, ["o", "s", "^", "D", "v", "P", "X", "."], strict=True))
DASHES: dict[str, Any] = dict(
    zip(
        COLOURS,
        ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (6, 3))],
        strict=True,
    )
)

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "black",
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelpad": 6,
    "axes.prop_cycle": cycler(color=list(COLOURS.values())),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 12,
    "figure.constrained_layout.w_pad": 0.11,  # room for text that grows on a small screen
    "figure.facecolor": "none",
    "font.size": 12,
    "grid.alpha": 0.15,
    "grid.color": "black",
    "legend.fontsize": 12,
    "legend.frameon": False,
    "lines.linewidth": 2.2,
    "lines.markersize": 6,
    "svg.fonttype": "none",
}
mpl.rcParams.update(STYLE)


def figure(
    width: float = 6.0, height: float = 3.6, *, rows: int = 1, columns: int = 1, **subplots: Any
) -> tuple[Figure, Any]:
    """An empty figure in the book's style, and its axes (an array when there are several).

    width, height: inches. `subplots` goes to `Figure.subplots` (sharex, width_ratios ...).
    """
    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, columns, **subplots)


def line(
    ax: Axes, x: Any, y: Any, kind: str, *, label: str | None = None, **style: Any
) -> None:
    """Draw y against x in the colour, marker and dash of `kind`, a key of COLOURS."""
    _known(kind)
    look = {"color": COLOURS[kind], "marker": MARKERS[kind], "linestyle": DASHES[kind]}
    ax.plot(x, y, label=label, **(look | style))


def legend(ax: Axes, *, columns: int = 2, above: bool = True) -> None:
    """The names of the lines above the plot, where they cover no data; once per figure.

    above=False puts them inside the plot, for a figure with several plots.
    """
    names = ax.get_legend_handles_labels()
    style: dict[str, Any] = {"ncols": columns, "handlelength": 2.6}
    if above:
        ax.get_figure(root=True).legend(*names, loc="outside upper center", **style)  # type: ignore[union-attr]
    else:
        ax.legend(*names, loc="best", **style)


def heatmap(
    ax: Axes,
    matrix: Any,
    *,
    kind: str = "softmax",
    negative: str = "linear",
    limit: float | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    numbers: str | None = None,
    rotate: float = 0,
) -> None:
    """A matrix [rows, columns] as coloured cells: nothing at 0, full colour at `limit`.

    kind, negative: the colours of positive and negative numbers.
    limit: the size that gets the full colour; default: the largest |number|. NaN stays empty.
    rows, columns: names at the left and below; numbers: a format such as ".2f" for each cell.
    """
    if hasattr(matrix, "detach"):  # a tensor: of any dtype, with or without gradients
        matrix = matrix.detach().cpu().double()
    values = np.asarray(matrix, dtype=float)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"matrix has shape {values.shape}; a heat map needs [rows, columns]")
    if np.isinf(values).any():
        raise ValueError("matrix has infinite numbers; put NaN where a cell should stay empty")
    if limit is not None and not limit > 0:
        raise ValueError(f"limit is {limit}; it must be more than 0")
    limit = limit or float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    ax.imshow(_cells(values / limit, kind, negative), interpolation="none", aspect="auto")
    ax.grid(visible=False)
    sides = (("rows", ax.yaxis, rows), ("columns", ax.xaxis, columns))
    for (what, axis, names), size in zip(sides, values.shape, strict=True):
        if names is not None:
            if len(names) != size:
                raise ValueError(f"{what} has {len(names)} names; the matrix has {size} {what}")
            axis.set_ticks(range(len(names)), names)
            axis.set_tick_params(length=0)
    ax.tick_params(axis="x", rotation=rotate)
    if numbers is not None:
        for (i, j), value in np.ndenumerate(values):
            if not np.isnan(value):
                words = format(value, numbers).replace("-", "\N{MINUS SIGN}")
                ax.text(j, i, words, ha="center", va="center")


def _cells(values: np.ndarray, kind: str, negative: str) -> np.ndarray:
    """RGBA [rows, columns, 4]: the sign is the colour, the size is how opaque it is."""
    _known(kind)
    _known(negative)
    colour = np.where((values < 0)[..., None], to_rgb(COLOURS[negative]), to_rgb(COLOURS[kind]))
    opacity = np.clip(np.nan_to_num(np.abs(values)), 0, 1)
    return np.concatenate([colour, opacity[..., None]], axis=-1)


def boxes(
    ax: Axes,
    boxes: dict[str, tuple[Any, ...]],
    arrows: Sequence[tuple[str, ...]] = (),
    *,
    width: float = 1.6,
    height: float = 0.7,
) -> dict[str, FancyBboxPatch]:
    """A diagram: rounded boxes on a grid and arrows between them.

    boxes: name -> (x, y, text) or (x, y, text, kind) or (x, y, text, kind, width, height),
    the centre in the axes' units. arrows: (from, to) or (from, to, label).
    """
    ax.set_axis_off()
    drawn = {}
    for name, (x, y, text, *more) in boxes.items():
        kind, w, h = tuple(more) + ("neutral", width, height)[len(more) :]
        drawn[name] = _box(ax, x, y, text, kind, w, h)
    for start, end, *label in arrows:
        if missing := {start, end} - drawn.keys():
            raise ValueError(f"an arrow goes to {missing.pop()!r}, which is no box")
        _arrow(ax, drawn[start], drawn[end], *label)
    ax.set_aspect("equal")
    ax.autoscale_view()
    return drawn


def _box(
    ax: Axes, x: float, y: float, text: str, kind: str, w: float, h: float
) -> FancyBboxPatch:
    _known(kind)
    shape = "round,pad=0,rounding_size=0.1"
    box = FancyBboxPatch((x - w / 2, y - h / 2), w, h, boxstyle=shape, lw=1.8)
    box.set(edgecolor=COLOURS[kind], facecolor=(*to_rgb(COLOURS[kind]), 0.18))
    ax.add_patch(box)
    ax.text(x, y, text, ha="center", va="center")
    return box


def _arrow(ax: Axes, start: FancyBboxPatch, end: FancyBboxPatch, label: str = "") -> None:
    a, b = (
        (box.get_x() + box.get_width() / 2, box.get_y() + box.get_height() / 2)
        for box in (start, end)
    )
    ax.add_patch(
        FancyArrowPatch(
            a, b, patchA=start, patchB=end, shrinkA=2, shrinkB=2, mutation_scale=14,
            arrowstyle="-|>", color="black", lw=1.4,
        )
    )  # fmt: skip
    if label:
        middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
        ax.annotate(label, middle, (6, 6), textcoords="offset points")


def _known(kind: str) -> None:
    if kind not in COLOURS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(COLOURS)}")
