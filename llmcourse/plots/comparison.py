"""The running comparison of memories: one line a kind, from the committed result files.

    from llmcourse.plots import comparison
    fig = comparison.recall(["softmax", "linear"])
    plots.show(fig, name="fig-recall", caption="...", alt="...")

The files are written by benchmarks/recall.py and benchmarks/decoding.py; a chapter adds the
kind it is about. Their numbers, for the words around a figure: `rows`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from llmcourse.plots.style import COLOURS, figure, legend, line

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
Row = dict[str, Any]


def results(name: str) -> dict[str, Any]:
    """Everything in a result file, "recall" or "decoding": rows, machine, budget.

    Raises FileNotFoundError that says which script writes it.
    """
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: python benchmarks/{name}.py writes it")
    return json.loads(path.read_text(encoding="utf-8"))


def rows(name: str, **wanted: Any) -> list[Row]:
    """The rows of a result file whose entries are as `wanted`: memory="delta", task="mqar"."""
    found = results(name)["rows"]
    return [row for row in found if all(row.get(k) == v for k, v in wanted.items())]


def average(found: Sequence[Row], x: str, y: str) -> dict[Any, float]:
    """The mean of `y` over rows (seeds) for each value of `x`, in the order of `x`."""
    return {at: mean(row[y] for row in found if row[x] == at) for at in _places(found, x)}


def recall(kinds: Sequence[str]) -> Figure:
    """Two panels: MQAR against the number of pairs, the diary against the number of updates.

    kinds: memories, keys of `plots.COLOURS`. A line is the mean over seeds, the band around it
    from the worst seed to the best. Raises ValueError for a kind without results.
    """
    fig, (pairs, updates) = figure(6.0, 5.8, rows=2)
    for kind in kinds:
        _curve(pairs, "recall", kind, "num_facts", "accuracy", task="mqar")
        _curve(updates, "recall", kind, "num_updates", "accuracy", task="diary")
    _scale(pairs, [row["num_facts"] for row in rows("recall", task="mqar")])
    pairs.set(xlabel="pairs to remember (MQAR)", ylabel="answers right", ylim=(-0.04, 1.04))
    updates.set(xlabel="updates (diary)", ylabel="answers right", ylim=(-0.04, 1.04))
    legend(pairs, columns=max(1, len(kinds)))
    return fig


def decoding(kinds: Sequence[str]) -> Figure:
    """Two panels against the context: bytes remembered, and tokens generated per second.

    kinds: memories, keys of `plots.COLOURS`. Raises ValueError for a kind without results.
    """
    fig, (size, speed) = figure(6.0, 5.8, rows=2)
    contexts = [row["context"] for row in rows("decoding")]
    for kind in kinds:
        _curve(size, "decoding", kind, "context", "bytes")
        _curve(speed, "decoding", kind, "context", "tokens_per_s")
    for ax in (size, speed):
        _scale(ax, contexts)
    size.set(xlabel="tokens read", ylabel="bytes remembered", yscale="log")
    speed.set(xlabel="tokens read", ylabel="tokens per second")
    speed.set_ylim(bottom=0)
    legend(size, columns=max(1, len(kinds)))
    return fig


def _curve(ax: Axes, name: str, kind: str, x: str, y: str, **wanted: Any) -> None:
    found = rows(name, memory=kind, **wanted)
    if not found:
        raise ValueError(f"kinds: got {kind!r}, which has no rows in results/{name}.json")
    means = average(found, x, y)
    line(ax, list(means), list(means.values()), kind, label=kind)
    spread = [[row[y] for row in found if row[x] == at] for at in means]
    low, high = [min(values) for values in spread], [max(values) for values in spread]
    ax.fill_between(list(means), low, high, color=COLOURS[kind], alpha=0.18, lw=0)


def _scale(ax: Axes, places: Sequence[int]) -> None:
    """A logarithmic axis with the measured places written out as they are."""
    ax.set_xscale("log", base=2)
    ticks = sorted(set(places))
    ax.set_xticks(ticks, [f"{place:,}" for place in ticks])
    ax.minorticks_off()


def _places(found: Sequence[Row], x: str) -> list[Any]:
    return sorted({row[x] for row in found})
