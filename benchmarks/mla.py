"""Latent attention while decoding: the absorbed form against the explicit one.

python benchmarks/mla.py           measure, write results/mla.json
python benchmarks/mla.py --quick   a small run that writes nothing

One layer in the sizes of Kimi Linear, fresh weights, batch 1, float32. Its cache holds a
context of random latents: what they say does not change the speed. T further tokens are read,
and forgotten again, by both forms in turn (measure.interleaved). First single tokens after
contexts of several lengths; then pieces of several lengths after one context, to see where the
forms change places, beside the layer's own choice, which counts multiplications.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from llmcourse import measure
from llmcourse.cache import LatentCache
from llmcourse.layers.mla import MultiHeadLatentAttention
from llmcourse.progress import bar

RESULTS = Path(__file__).parent / "results"
SEED = 0
SIZES: dict[str, Any] = {"width": 2304, "num_heads": 32}
SIZES |= {"kv_rank": 512, "key_width": 128, "shared_key_width": 64, "value_width": 128}
QUICK = {name: max(2, size // 32) for name, size in SIZES.items()}
CONTEXTS = [256, 1024, 4096]
PIECES = [4, 16, 64, 128, 256]  # after the longest context
FORMS = {"explicit": False, "absorbed": True}
Row = dict[str, Any]


def filled(layer: MultiHeadLatentAttention, context: int) -> LatentCache:
    """A cache that holds `context` random latents."""
    generator = torch.Generator().manual_seed(SEED)
    memory = layer.new_memory()
    sizes = (memory.rank, memory.shared_width)
    memory.append(*(torch.randn(1, context, size, generator=generator) for size in sizes))
    return memory


def reader(
    layer: MultiHeadLatentAttention, x: torch.Tensor, memory: LatentCache, absorbed: bool
) -> Callable[[], torch.Tensor]:
    """A task that reads x after the context, which it leaves as it was."""
    context = memory.length

    def read() -> torch.Tensor:
        y = layer(x, memory, absorbed=absorbed)
        memory.length = context
        return y

    return read


@torch.no_grad()
def compare(
    layer: MultiHeadLatentAttention, context: int, tokens: int, repeats: int
) -> list[Row]:
    """One row a form: the times to read `tokens` tokens after `context` others."""
    x = torch.randn(1, tokens, layer.latent_down.in_features)
    memory = filled(layer, context)
    held = memory.bytes
    tasks = {form: reader(layer, x, memory, absorbed) for form, absorbed in FORMS.items()}
    explicit, absorbed = (task() for task in tasks.values())
    difference = (absorbed - explicit).abs().max() / explicit.abs().max()
    times = measure.interleaved(tasks, repeats)
    chosen = "absorbed" if layer.absorbed_is_cheaper(tokens, context + tokens) else "explicit"
    return [
        {
            "form": form,
            "context": context,
            "tokens": tokens,
            "chosen": form == chosen,
            "bytes": held,
            "flops": measure.flops(task),
            "median_s": median(times[form]),
            "least_s": min(times[form]),
            "difference": difference.item(),
        }
        for form, task in tasks.items()
    ]


def run(quick: bool) -> dict[str, Any]:
    """Measure everything; returns what results/mla.json holds."""
    torch.manual_seed(SEED)
    sizes, repeats = (QUICK, 2) if quick else (SIZES, 15)
    contexts, pieces = ([8, 16], [4]) if quick else (CONTEXTS, PIECES)
    layer = MultiHeadLatentAttention(**sizes).eval()
    cases = [(n, 1) for n in contexts] + [(contexts[-1], T) for T in pieces]
    rows = []
    with bar(len(cases), what="mla") as progress:
        for context, tokens in cases:
            rows += compare(layer, context, tokens, repeats)
            progress.update()
    return {
        "machine": measure.machine(),
        "seed": SEED,
        "sizes": sizes,
        "repeats": repeats,
        "rows": rows,
    }


def report(result: dict[str, Any]) -> None:
    """Print a line for each case: both forms, and how many times faster the absorbed one is."""
    print("milliseconds: median (least)")
    print(f"{'context':>8}{'tokens':>8}{'explicit':>20}{'absorbed':>20}{'faster':>16}  chosen")
    rows = result["rows"]
    for old, new in zip(rows[::2], rows[1::2], strict=True):
        times = (f"{1e3 * r['median_s']:.2f} ({1e3 * r['least_s']:.2f})" for r in (old, new))
        ratio = [old[time] / new[time] for time in ("median_s", "least_s")]
        faster = f"{ratio[0]:.2f} ({ratio[1]:.2f})"
        chosen = next(r["form"] for r in (old, new) if r["chosen"])
        start = f"{old['context']:8,}{old['tokens']:8}"
        print(start + "".join(f"{t:>20}" for t in times) + f"{faster:>16}  {chosen}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    options = parser.parse_args()
    result = run(options.quick)
    report(result)
    if not options.quick:
        (RESULTS / "mla.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
