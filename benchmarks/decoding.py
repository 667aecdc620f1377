"""What each memory costs while generating: bytes remembered and tokens per second.

python benchmarks/decoding.py           measure, write results/decoding.json
python benchmarks/decoding.py --quick   a small run that writes nothing

One trunk with each memory, fresh weights, batch 1. A context is filled with random tokens;
then single tokens are generated from there, the memories taking turns (measure.interleaved).
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from llmcourse import measure
from llmcourse.models import OneMemory, OneMemoryConfig
from llmcourse.models.one_memory import MEMORIES
from llmcourse.progress import bar

RESULTS = Path(__file__).parent / "results"
SEED = 0
# Heads of 64, as wide as GPT-2's; few layers, so that the memory is much of the work.
TRUNK = OneMemoryConfig("softmax", 1024, width=256, num_layers=4, num_heads=4)
QUICK = replace(TRUNK, width=32, num_layers=1, num_heads=2)
CONTEXTS = [256, 512, 1024, 2048, 4096, 8192, 16384]
PIECE = 1024  # tokens of a context read at once: scores of a piece take PIECE x context numbers
Row = dict[str, Any]


def filled(model: OneMemory, context: int) -> Any:
    """A cache that has read `context` random tokens."""
    generator = torch.Generator().manual_seed(SEED)
    ids = torch.randint(model.config.vocab_size, (1, context), generator=generator)
    cache = model.new_cache()
    for piece in ids.split(PIECE, dim=1):
        model(piece, cache)
    return cache


def stepper(model: OneMemory, cache: Any) -> Callable[[], None]:
    """A task that generates one more token; the context grows by one each time."""
    token = torch.zeros(1, 1, dtype=torch.int64)

    def step() -> None:
        token.copy_(model(token, cache)[:, -1:].argmax(-1))

    return step


@torch.no_grad()
def compare(models: dict[str, OneMemory], context: int, repeats: int) -> list[Row]:
    """One row a memory: bytes after `context` tokens, and the speed of the next ones."""
    caches = {kind: filled(model, context) for kind, model in models.items()}
    held = {kind: cache.bytes for kind, cache in caches.items()}
    tasks = {kind: stepper(model, caches[kind]) for kind, model in models.items()}
    times = measure.interleaved(tasks, repeats, warmup=3)
    return [
        {
            "memory": kind,
            "context": context,
            "bytes": held[kind],
            "tokens_per_s": 1 / median(times[kind]),
            "median_s": median(times[kind]),
            "least_s": min(times[kind]),
        }
        for kind in models
    ]


def run(quick: bool) -> dict[str, Any]:
    """Measure everything; returns what results/decoding.json holds."""
    torch.manual_seed(SEED)
    trunk = QUICK if quick else TRUNK
    contexts, repeats = ([8, 16], 2) if quick else (CONTEXTS, 60)
    models = {kind: OneMemory(replace(trunk, memory=kind)).eval() for kind in MEMORIES}
    shape = {name: value for name, value in asdict(trunk).items() if name != "memory"}
    rows = []
    with bar(len(contexts), what="decoding") as progress:
        for context in contexts:
            rows += compare(models, context, repeats)
            progress.update()
    return {
        "machine": measure.machine(),
        "seed": SEED,
        "trunk": shape,
        "repeats": repeats,
        "rows": rows,
    }


def report(result: dict[str, Any]) -> None:
    """Print a line for each context and memory."""
    print(f"{'memory':10}{'context':>9}{'bytes':>14}{'tokens/s':>11}")
    for r in result["rows"]:
        print(f"{r['memory']:10}{r['context']:9,}{r['bytes']:14,}{r['tokens_per_s']:11.1f}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    options = parser.parse_args()
    result = run(options.quick)
    report(result)
    if not options.quick:
        (RESULTS / "decoding.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
