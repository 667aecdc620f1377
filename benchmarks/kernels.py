"""The memory rules against public peers: time, memory, and how far from what the machine can
do.

    python benchmarks/kernels.py              write results/kernels.json, draw the plots
    python benchmarks/kernels.py --quick      a small run that writes nothing
    python benchmarks/kernels.py --headline   the headline case alone, as JSON

Everything that is compared is called in turn in one process (measure.interleaved), on the same
tensors. Peers: transformers' PyTorch forms of Kimi Linear (KDA) and Qwen3-Next (gated delta
rule); with a CUDA device also flash-linear-attention's Triton kernels, where `fla` is
installed. Floors: the matrix products that ours does over the measured rate of a large matrix
product, and the bytes of its arguments and results over the measured bandwidth of a copy.
The headline case is measured twice: as the system comes, and in a process whose C library keeps
freed memory for the next call, as a GPU's allocator does. What was tried: kernels.md beside.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from llmcourse import measure, plots
from llmcourse.ops import delta, gated_delta, kda, linear, softmax

RESULTS = Path(__file__).parent / "results"
SEED = 0
HEADLINE = {"T": 2048, "H": 4, "K": 128, "C": 64}
Row = dict[str, Any]
Form = Callable[..., Any]


def inputs(T: int, H: int, K: int, device: str) -> dict[str, Tensor]:
    """Arguments of all rules for one sequence, V = K; both shapes of gate under their own
    names.
    """
    generator = torch.Generator().manual_seed(SEED)

    def normal() -> Tensor:
        return torch.randn(1, T, H, K, generator=generator)

    x = {"q": F.normalize(normal(), dim=-1), "k": F.normalize(normal(), dim=-1), "v": normal()}
    x["g"] = -torch.rand(1, T, H, K, generator=generator)
    x["g_head"] = -torch.rand(1, T, H, generator=generator)
    x["beta"] = torch.rand(1, T, H, generator=generator)
    return {name: y.to(device) for name, y in x.items()}


def ours(C: int) -> dict[str, tuple[Form, str]]:
    """Our forms by name, each with the names of its arguments."""
    return {
        "softmax chunked": (softmax.chunked, "q k v"),
        "linear chunked": (lambda *a: linear.chunked(*a, chunk_size=C), "q k v"),
        "delta chunked": (lambda *a: delta.chunked(*a, chunk_size=C), "q k v beta"),
        "gated_delta chunked": (
            lambda *a: gated_delta.chunked(*a, chunk_size=C),
            "q k v g_head beta",
        ),
        "kda chunked": (lambda *a: kda.chunked(*a, chunk_size=C), "q k v g beta"),
        "kda recurrent": (kda.recurrent, "q k v g beta"),
    }


def peers(device: str) -> dict[str, tuple[Form, str]]:
    """Public forms by name, each with the names of its arguments."""
    from transformers.models.kimi_linear import modeling_kimi_linear as kimi
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    found: dict[str, tuple[Form, str]] = {
        "transformers kda chunked": (
            lambda *a: kimi.chunk_kimi_delta_attention(*a, output_final_state=True),
            "q k v g beta",
        ),
        "transformers kda recurrent": (
            lambda *a: kimi.recurrent_kimi_delta_attention(
                *a, initial_state=None, output_final_state=True
            ),
            "q k v g beta",
        ),
        "transformers gated_delta chunked": (
            lambda *a: qwen.torch_chunk_gated_delta_rule(*a, output_final_state=True),
            "q k v g_head beta",
        ),
    }
    if device == "cuda":
        try:
            from fla.ops.kda import chunk_kda
        except ImportError:
            print("fla is not installed, so its Triton kernels are left out")
        else:
            found["fla kda chunked"] = (
                lambda *a: chunk_kda(*a, output_final_state=True),
                "q k v g beta",
            )
    return found


def forward(form: Form, x: dict[str, Tensor], names: str) -> Callable[[], Any]:
    """A call of the form, without gradients."""

    def run() -> Any:
        with torch.no_grad():
            return form(*(x[n] for n in names.split()))

    return run


def forward_backward(form: Form, x: dict[str, Tensor], names: str) -> Callable[[], Any]:
    """A call of the form, and the gradients of the sum of its output by every argument."""

    def run() -> Any:
        leaves = [x[n].detach().requires_grad_() for n in names.split()]
        o = form(*leaves)
        return torch.autograd.grad((o[0] if isinstance(o, tuple) else o).sum(), leaves)

    return run


PASSES = {"forward": forward, "forward+backward": forward_backward}


def page_faults(task: Callable[[], Any]) -> int:
    """How many pages of fresh memory (usually 4 kB) the system hands out during a call."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    task()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def compare(
    forms: dict[str, tuple[Form, str]],
    x: dict[str, Tensor],
    way: str,
    repeats: int,
    **case: int,
) -> list[Row]:
    """One row a form: median and least time of interleaved calls, the most memory held, and
    how many pages of it were fresh.
    """
    tasks = {name: PASSES[way](form, x, names) for name, (form, names) in forms.items()}
    times = measure.interleaved(tasks, repeats)
    return [
        {
            "form": name,
            "pass": way,
            **case,
            "median_s": statistics.median(times[name]),
            "least_s": min(times[name]),
            "peak_bytes": measure.peak_memory(task),
            "page_faults": page_faults(task),
        }
        for name, task in tasks.items()
    ]


def floors(name: str, x: dict[str, Tensor], C: int, rates: dict[str, float]) -> list[Row]:
    """The least time that our form's products and its arguments' bytes allow, a row a pass."""
    form, names = ours(C)[name]
    rows = []
    for way, make in PASSES.items():
        flops = measure.flops(make(form, x, names))
        # arguments in, output out; backward: the same again, and every gradient out
        size = sum(x[n].nbytes for n in names.split()) + x["v"].nbytes
        size *= 1 if way == "forward" else 3
        rows.append(
            {
                "form": name,
                "pass": way,
                "flops": flops,
                "products_s": flops / rates["matmul_flops_per_s"],
                "bytes_s": size / rates["copy_bytes_per_s"],
            }
        )
    return rows


def where(name: str, x: dict[str, Tensor], C: int) -> list[Row]:
    """Where the time of our form goes: the share of each kind of operation, a row a pass."""
    form, names = ours(C)[name]
    kinds = {
        "matrix products": ("bmm", "addmm", "mm"),
        "copies": ("copy", "cat", "clone", "fill"),
    }
    rows = []
    for way, make in PASSES.items():
        task = make(form, x, names)
        task()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for _ in range(5):
                task()
        spent = dict.fromkeys([*kinds, "element by element"], 0.0)
        for event in seen.key_averages():
            if event.key.startswith("aten::"):
                words = event.key.removeprefix("aten::")
                kind = next((k for k, v in kinds.items() if any(w in words for w in v)), None)
                spent[kind or "element by element"] += event.self_cpu_time_total
        total = sum(spent.values())
        rows.append({"form": name, "pass": way} | {k: v / total for k, v in spent.items()})
    return rows


def slope(rows: list[Row], form: str, way: str) -> float:
    """The slope of log time against log T from 1,024 tokens on, by least squares."""
    points = [
        (math.log(r["T"]), math.log(r["median_s"]))
        for r in rows
        if r["form"] == form and r["pass"] == way and r["T"] >= 1024
    ]
    mean_x, mean_y = (statistics.mean(c) for c in zip(*points, strict=True))
    covered = sum((a - mean_x) ** 2 for a, _ in points)
    return sum((a - mean_x) * (b - mean_y) for a, b in points) / covered


def headline(
    head: dict[str, int], x: dict[str, Tensor], repeats: int, device: str
) -> list[Row]:
    """Ours and the peers, interleaved, on one case."""
    forms = ours(head["C"]) | peers(device)
    return [row for way in PASSES for row in compare(forms, x, way, repeats, **head)]


def headline_with_kept_memory(device: str) -> list[Row]:
    """The same in a process of its own, whose C library (glibc) keeps what was freed."""
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": "4000000000",
        "MALLOC_TRIM_THRESHOLD_": "8000000000",
    }
    command = [sys.executable, __file__, "--headline", "--device", device]
    child = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(child.stdout)


def run(quick: bool, device: str) -> dict[str, Any]:
    """Measure everything; returns what results/kernels.json holds."""
    rates = {
        "matmul_flops_per_s": measure.matmul_rate(512 if quick else 2048, device=device),
        "copy_bytes_per_s": measure.bandwidth(2**24 if quick else 2**28, device=device),
    }
    head = {"T": 256, "H": 2, "K": 32, "C": 64} if quick else HEADLINE
    C = head["C"]
    x = inputs(head["T"], head["H"], head["K"], device)
    result: dict[str, Any] = {"machine": measure.machine(), "seed": SEED, "rates": rates}
    lengths = [64, 128] if quick else [256, 512, 1024, 2048, 4096, 8192, 16384]
    shapes = [] if quick else [(h, k) for h in (1, 4, 16) for k in (64, 128, 256)]
    sizes = [16, 64] if quick else [16, 32, 64, 128, 256]
    bar = tqdm(total=1 + len(lengths) + len(shapes) + len(sizes), disable=None)
    result["headline"] = headline(head, x, 3 if quick else 7, device)
    result["headline_kept_memory"] = [] if quick else headline_with_kept_memory(device)
    result["floors"] = [r for n in ours(C) if "chunked" in n for r in floors(n, x, C, rates)]
    result["where"] = [r for n in ours(C) if "chunked" in n for r in where(n, x, C)]
    bar.update()
    chunked = {n: f for n, f in ours(C).items() if "chunked" in n and "softmax" not in n}
    result["lengths"] = []
    for T in lengths:
        y = inputs(T, head["H"], head["K"], device)
        few = {n: f for n, f in peers(device).items() if T <= 4096 and "chunked" in n}
        for way in PASSES:
            case = {"T": T, "H": head["H"], "K": head["K"], "C": C}
            repeats = 3 if quick or T > 4096 else 5
            result["lengths"] += compare(chunked, y, way, repeats, **case)
            result["lengths"] += compare(few, y, way, 1 if T > 1024 else 2, **case)
        bar.update()
    result["shapes"] = []
    for H, K in shapes:
        y = inputs(1024, H, K, device)
        for way in PASSES:
            result["shapes"] += compare(chunked, y, way, 5, T=1024, H=H, K=K, C=C)
        bar.update()
    result["chunk_sizes"] = []
    for size in sizes:
        forms = {n: f for n, f in ours(size).items() if n in chunked}
        for way in PASSES:
            result["chunk_sizes"] += compare(forms, x, way, 5, **head | {"C": size})
        bar.update()
    bar.close()
    result["slopes"] = [
        {"form": n, "pass": way, "slope": slope(result["lengths"], n, way)}
        for n in chunked
        for way in PASSES
        if not quick
    ]
    return result


def report(result: dict[str, Any]) -> None:
    """Print the table of the headline case: times, ratios to ours, memory, distance to the
    floor.
    """
    floor = {(r["form"], r["pass"]): r["products_s"] for r in result["floors"]}
    for case in ("headline", "headline_kept_memory"):
        rows = result[case]
        base = {r["pass"]: r["median_s"] for r in rows if r["form"] == "kda chunked"}
        print(f"{case:34}{'pass':18}{'ms':>9}{'/ kda':>9}{'MB':>9}{'faults':>9}{'/ floor':>9}")
        for r in rows:
            least = floor.get((r["form"], r["pass"]))
            times = f"{r['median_s'] / least:9.1f}" if least else ""
            ratio = r["median_s"] / base[r["pass"]]
            print(
                f"{r['form']:34}{r['pass']:18}{r['median_s'] * 1e3:9.1f}{ratio:9.2f}"
                f"{r['peak_bytes'] / 1e6:9.1f}{r['page_faults']:9}{times}"
            )
    for r in result["slopes"]:
        print(f"{r['form']:34}{r['pass']:18} log time / log T, from 1,024: {r['slope']:.2f}")


BEGIN, END = "<!-- from kernels.json -->", "<!-- end -->"


def standing(result: dict[str, Any]) -> str:
    """The table of kernels.md: ratios to each peer and to the floor, memory, slopes."""
    lines = ["| kda chunked | forward | forward+backward |", "| --- | --- | --- |"]
    floor = {r["pass"]: r["products_s"] for r in result["floors"] if r["form"] == "kda chunked"}
    for case in ("headline", "headline_kept_memory"):
        rows = {(r["form"], r["pass"]): r for r in result[case]}
        ours = {way: rows["kda chunked", way] for way in PASSES}
        for form in ("transformers kda chunked", "transformers kda recurrent"):
            ratios = [rows[form, way]["median_s"] / ours[way]["median_s"] for way in PASSES]
            kept = ", freed memory kept" if case != "headline" else ""
            lines.append(
                f"| times as fast as {form}{kept} | {ratios[0]:.1f} | {ratios[1]:.1f} |"
            )
        if case == "headline":
            theirs = [rows["transformers kda chunked", way] for way in PASSES]
            for label, key in (("page faults", "page_faults"), ("bytes held", "peak_bytes")):
                cells = [
                    f"{t[key]:,} : {o[key]:,}"
                    for t, o in zip(theirs, ours.values(), strict=True)
                ]
                lines.append(f"| {label}, its chunked form : ours | {cells[0]} | {cells[1]} |")
            cells = [f"{ours[way]['median_s'] / floor[way]:.1f}" for way in PASSES]
            lines.append(
                f"| times its products at the rate of a large one | {' | '.join(cells)} |"
            )
    for name in dict.fromkeys(r["form"] for r in result["slopes"]):
        slopes = [f"{r['slope']:.2f}" for r in result["slopes"] if r["form"] == name]
        lines.append(f"| log time / log T, {name} | {' | '.join(slopes)} |")
    return "\n".join(lines)


def write_standing(result: dict[str, Any]) -> None:
    """Put the table into kernels.md, between its two marks."""
    page = Path(__file__).with_suffix(".md")
    text = page.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{standing(result)}\n\n{END}{after}", encoding="utf-8")


def draw(result: dict[str, Any]) -> None:
    """Plots of time and memory against length, ours and peers: results/kernels_*.svg."""
    kinds = {"linear": "linear", "delta": "delta", "gated_delta": "gated", "kda": "kda"}
    for quantity, label, scale in (
        ("median_s", "seconds", 1),
        ("peak_bytes", "megabytes", 1e6),
    ):
        fig, ax = plots.figure()
        for name in dict.fromkeys(r["form"] for r in result["lengths"]):
            rows = [
                r
                for r in result["lengths"]
                if r["form"] == name and r["pass"] == "forward+backward"
            ]
            words = name.split()
            kind = kinds[words[-2]]
            theirs = words[0] == "transformers"
            ax.plot(
                [r["T"] for r in rows],
                [r[quantity] / scale for r in rows],
                color=plots.COLOURS[kind],
                marker=plots.MARKERS[kind],
                linestyle=":" if theirs else "-",
                label=name,
            )
        ax.set(
            xscale="log", yscale="log", xlabel="tokens", ylabel=f"{label}, forward + backward"
        )
        ax.legend(fontsize=8)
        fig.savefig(RESULTS / f"kernels_{quantity.split('_')[0]}.svg", bbox_inches="tight")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--headline", action="store_true", help="the headline case, as JSON")
    options = parser.parse_args()
    if options.headline:
        x = inputs(HEADLINE["T"], HEADLINE["H"], HEADLINE["K"], options.device)
        print(json.dumps(headline(HEADLINE, x, 7, options.device)))
        return
    result = run(options.quick, options.device)
    report(result)
    if not options.quick:
        draw(result)
        write_standing(result)
        (RESULTS / "kernels.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
