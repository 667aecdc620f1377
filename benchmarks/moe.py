"""A mixture of experts against a dense MLP with as many active parameters: the time of a pass.

python benchmarks/moe.py           measure, write results/moe.json
python benchmarks/moe.py --quick   a small run that writes nothing

Each token visits the same number of experts, however many there are; the dense MLP is as wide
in the middle as those together. All take turns in one process (measure.interleaved), on one
thread, and the forward pass on every core too, in two ways. As PyTorch comes, a thread that is
done with its half of a product spins until the other is; where another process has taken that
core, it spins for a while in each of a mixture's many small products. With
OMP_WAIT_POLICY=passive it sleeps instead.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from llmcourse import measure
from llmcourse.layers.mlp import SwiGLU
from llmcourse.layers.moe import MixtureOfExperts, loads
from llmcourse.progress import bar

RESULTS = Path(__file__).parent / "results"
SEED = 0
SHAPE = {"width": 1024, "expert_width": 512, "num_active": 4, "tokens": 2048}
QUICK = {"width": 16, "expert_width": 8, "num_active": 2, "tokens": 32}
REPEATS = {"forward": 12, "forward+backward": 4, "quick": 2}
Row = dict[str, Any]


def layers(shape: dict[str, int], counts: list[int]) -> dict[str, nn.Module]:
    """The dense MLP and a mixture for each number of experts, by name."""
    D, F, k = shape["width"], shape["expert_width"], shape["num_active"]
    made: dict[str, nn.Module] = {"dense": SwiGLU(D, k * F)}
    return made | {f"{E} experts": MixtureOfExperts(D, F, E, k) for E in counts}


def forward(layer: nn.Module, x: Tensor) -> Callable[[], Any]:
    """A call of the layer, without gradients."""
    return torch.no_grad()(lambda: layer(x))


def forward_backward(layer: nn.Module, x: Tensor) -> Callable[[], Any]:
    """A call of the layer, and the gradients by its input and every parameter."""
    leaves = [x.clone().requires_grad_(), *layer.parameters()]
    return lambda: torch.autograd.grad(layer(leaves[0]).sum(), leaves)


PASSES = {"forward": forward, "forward+backward": forward_backward}


def compare(made: dict[str, nn.Module], x: Tensor, way: str, repeats: int) -> list[Row]:
    """One row a layer: seconds, and their ratio to those of the dense MLP."""
    tasks = {name: PASSES[way](layer, x) for name, layer in made.items()}
    times = measure.interleaved(tasks, repeats)
    return [
        {
            "layer": name,
            "pass": way,
            "threads": torch.get_num_threads(),
            "median_s": median(times[name]),
            "least_s": min(times[name]),
            "median_ratio": median(times[name]) / median(times["dense"]),
            "least_ratio": min(times[name]) / min(times["dense"]),
        }
        for name in tasks
    ]


@torch.no_grad()
def busiest(layer: nn.Module, x: Tensor) -> float | None:
    """The largest load of an expert over the mean load; none for the dense MLP."""
    if not isinstance(layer, MixtureOfExperts):
        return None
    load = loads(layer.router(x.flatten(0, 1))).double()
    return (load.max() / load.mean()).item()


def setting(quick: bool) -> tuple[dict[str, int], dict[str, nn.Module], Tensor]:
    """The sizes, the layers by name, and the tokens that all of them are given."""
    torch.manual_seed(SEED)
    shape, counts = (QUICK, [4, 8]) if quick else (SHAPE, [8, 16, 32, 64])
    return shape, layers(shape, counts), torch.randn(1, shape["tokens"], shape["width"])


def every_core(quick: bool) -> list[Row]:
    """The forward pass on every core of this process."""
    torch.set_num_threads(measure.machine()["cores"])
    _, made, x = setting(quick)
    return compare(made, x, "forward", REPEATS["quick" if quick else "forward"])


def elsewhere(waiting: str, quick: bool) -> list[Row]:
    """Rows of `every_core` from a process whose threads wait for one another in this way."""
    env = {n: v for n, v in os.environ.items() if not n.startswith(("OMP_", "GOMP_"))}
    if waiting == "passive":
        env["OMP_WAIT_POLICY"] = waiting
    command = [sys.executable, __file__, "--every-core", *(["--quick"] if quick else [])]
    found = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return [row | {"waiting": waiting} for row in json.loads(found.stdout)]


def run(quick: bool) -> dict[str, Any]:
    """Measure everything; returns what results/moe.json holds."""
    machine = measure.machine()
    torch.set_num_threads(1)
    shape, made, x = setting(quick)
    tasks: list[Callable[[], list[Row]]] = [
        partial(compare, made, x, way, REPEATS["quick" if quick else way]) for way in PASSES
    ]
    tasks += [partial(elsewhere, waiting, quick) for waiting in ("passive", "as it comes")]
    rows = []
    with bar(len(tasks), what="moe") as progress:
        for task in tasks:
            rows += task()
            progress.update()
    return {
        "machine": machine,
        "seed": SEED,
        "shape": shape,
        "repeats": REPEATS,
        "forward_flops": {name: measure.flops(forward(m, x)) for name, m in made.items()},
        "busiest_load": {name: busiest(m, x) for name, m in made.items()},
        "rows": rows,
    }


def report(result: dict[str, Any]) -> None:
    """Print a line for each case and layer."""
    times = f"{'median ms':>11}{'least ms':>10}"
    print(f"{'layer':12}{'pass':18}{'threads':>8}{times}  of dense       waiting")
    for r in result["rows"]:
        print(
            f"{r['layer']:12}{r['pass']:18}{r['threads']:8}{r['median_s'] * 1e3:11.1f}"
            f"{r['least_s'] * 1e3:10.1f}  {r['median_ratio']:.2f} and {r['least_ratio']:.2f}"
            f"  {r.get('waiting', '')}"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    parser.add_argument("--every-core", action="store_true", help="that case alone, as JSON")
    options = parser.parse_args()
    if options.every_core:
        print(json.dumps(every_core(options.quick)))
        return
    result = run(options.quick)
    report(result)
    if not options.quick:
        (RESULTS / "moe.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
