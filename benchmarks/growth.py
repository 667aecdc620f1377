"""How the time to generate one token grows with the context: GPT-2 beside both Kimi models.

python benchmarks/growth.py           measure, write results/growth.json and growth.svg
python benchmarks/growth.py --quick   a small run that writes nothing

The tiny presets with fresh weights, batch 1, float32; GPT-2's with positions for the longest
context. Each reads a text of random tokens, and its cache is copied at every context. Then the
copies take turns, a token each (measure.interleaved): a slow moment falls on all contexts.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from decoding import PIECE, stepper

from llmcourse import measure, plots
from llmcourse.cache import Cache
from llmcourse.models import (
    GPT2,
    GPT2Config,
    KimiK3,
    KimiK3Config,
    KimiLinear,
    KimiLinearConfig,
)
from llmcourse.progress import bar

RESULTS = Path(__file__).parent / "results"
SEED = 0
CONTEXTS = [1024, 2048, 4096, 8192, 16384]
STEPS, WARMUP = 100, 3  # tokens after each context: timed, and before those
# The most that is asked: time at the longest context / time at the shortest.
TARGETS = {"Kimi Linear": 1.3, "Kimi K3": 1.3}
LOOKS = {"GPT-2": "softmax", "Kimi Linear": "kda", "Kimi K3": "mla"}  # keys of plots.COLOURS
Row = dict[str, Any]


def models(longest: int) -> dict[str, Any]:
    """The tiny presets, fit to read `longest` tokens."""
    torch.manual_seed(SEED)
    made = {
        "GPT-2": GPT2(replace(GPT2Config.tiny(), context_length=longest)),
        "Kimi Linear": KimiLinear(KimiLinearConfig.tiny()),
        "Kimi K3": KimiK3(KimiK3Config.tiny()),
    }
    return {name: model.eval() for name, model in made.items()}


def filled(model: Any, contexts: Sequence[int]) -> dict[int, Cache]:
    """Caches of one random text after each of `contexts` tokens, in rising order."""
    generator = torch.Generator().manual_seed(SEED)
    ids = torch.randint(model.config.vocab_size, (1, contexts[-1]), generator=generator)
    cache, caches = model.new_cache(), {}
    for context in contexts:
        for piece in ids[:, cache.length : context].split(PIECE, dim=1):
            model(piece, cache)
        caches[context] = cache.copy()
    return caches


def compare(name: str, model: Any, caches: dict[int, Cache], steps: int) -> list[Row]:
    """One row for each context: bytes remembered, and the time of a token after it."""
    held = {context: cache.bytes for context, cache in caches.items()}
    tasks = {str(context): stepper(model, cache) for context, cache in caches.items()}
    times = measure.interleaved(tasks, steps, warmup=WARMUP)
    return [
        {
            "model": name,
            "context": context,
            "bytes": held[context],
            "median_s": median(times[str(context)]),
            "least_s": min(times[str(context)]),
        }
        for context in caches
    ]


def growth(rows: Sequence[Row], model: str) -> float:
    """The median time of a token at the longest context by that at the shortest."""
    times = {row["context"]: row["median_s"] for row in rows if row["model"] == model}
    return times[max(times)] / times[min(times)]


@torch.no_grad()
def run(quick: bool) -> dict[str, Any]:
    """Measure everything; returns what results/growth.json holds."""
    contexts, steps = ([8, 16], 2) if quick else (CONTEXTS, STEPS)
    made, caches = models(contexts[-1] + WARMUP + steps), {}
    with bar(len(made), what="reading") as progress:
        for name, model in made.items():
            caches[name] = filled(model, contexts)
            progress.update()
    rows = [row for name in made for row in compare(name, made[name], caches[name], steps)]
    return {
        "machine": measure.machine(),
        "seed": SEED,
        "steps": steps,
        "growth": {name: growth(rows, name) for name in LOOKS},
        "targets": TARGETS,
        "rows": rows,
    }


def report(result: dict[str, Any]) -> None:
    """Print a line for each model: milliseconds a token at each context, and the growth."""
    contexts = sorted({row["context"] for row in result["rows"]})
    print(f"{'ms a token at':14}" + "".join(f"{n:>9,}" for n in contexts) + "   growth  asked")
    for name, grown in result["growth"].items():
        times = [row["median_s"] for row in result["rows"] if row["model"] == name]
        asked = f"at most {TARGETS[name]}" if name in TARGETS else "-"
        cells = "".join(f"{1e3 * t:9.2f}" for t in times)
        print(f"{name:14}{cells}{grown:9.2f}  {asked}")


def draw(result: dict[str, Any]) -> None:
    """The times by those at the shortest context: results/growth.svg."""
    fig, ax = plots.figure()
    for name, kind in LOOKS.items():
        rows = [row for row in result["rows"] if row["model"] == name]
        contexts = [row["context"] for row in rows]
        times = [row["median_s"] / rows[0]["median_s"] for row in rows]
        plots.line(ax, contexts, times, kind, label=name)
    most = max(TARGETS.values())
    ax.axhline(most, color="black", lw=1, ls=":", label=f"{most} times")
    ax.set_xscale("log", base=2)
    ax.set_xticks(contexts, [f"{n:,}" for n in contexts])
    ax.minorticks_off()
    ax.set(xlabel="tokens read", ylabel=f"time of a token / that at {contexts[0]:,}")
    ax.set_ylim(bottom=0)
    plots.legend(ax)
    fig.savefig(RESULTS / "growth.svg", bbox_inches="tight")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    options = parser.parse_args()
    result = run(options.quick)
    report(result)
    if not options.quick:
        draw(result)
        (RESULTS / "growth.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
