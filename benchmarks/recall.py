"""The recall of each memory in one trunk, under one budget: MQAR and the diary.

python benchmarks/recall.py           train, write results/recall.json
python benchmarks/recall.py --quick   a small run that writes nothing

Every memory gets the same trunk, batches, steps and seeds. Its learning rate is the best of a
grid that all share, by the accuracy on batches that are held back for this choice; then more
seeds are trained at that rate. The results are of yet other batches.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from llmcourse import data, measure, probes
from llmcourse.models import OneMemory, OneMemoryConfig
from llmcourse.models.one_memory import MEMORIES
from llmcourse.progress import bar

RESULTS = Path(__file__).parent / "results"
CHOICE, TEST = 10_001, 10_002  # seeds of batches; training uses 0, 1, 2 ...
Row = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """What every memory gets alike."""

    width: int = 64
    num_layers: int = 1
    num_heads: dict[str, int] = field(default_factory=lambda: {"mqar": 4, "diary": 2})
    mlp_ratio: int = 2
    batch_size: dict[str, int] = field(default_factory=lambda: {"mqar": 32, "diary": 16})
    steps: dict[str, int] = field(default_factory=lambda: {"mqar": 500, "diary": 3000})
    learning_rates: tuple[float, ...] = (5e-3, 1e-2, 2e-2, 4e-2)
    seeds: int = 3
    num_pairs: tuple[int, ...] = (2, 4, 8, 16, 32)
    length: int = 96
    vocab_size: int = 80
    num_facts: int = 4
    num_updates: tuple[int, ...] = (0, 4, 8, 16)
    questions: int = 2048  # asked at each place of a curve


QUICK = Budget(
    width=16, steps={"mqar": 3, "diary": 3}, learning_rates=(1e-2,), seeds=1, num_pairs=(2, 4),
    length=16, vocab_size=20, num_updates=(0, 2), questions=32,
)  # fmt: skip


def train(kind: str, task: str, rate: float, seed: int, budget: Budget) -> OneMemory:
    """One model, trained on batches that mix all difficulties of a task."""
    b, size = budget, {"batch_size": budget.batch_size[task], "seed": seed}
    mqar = data.mqar_batches(b.num_pairs, b.length, b.vocab_size, **size)
    diary = data.diary_batches(b.num_facts, b.num_updates, 0, **size)
    config = OneMemoryConfig(
        memory=kind,
        vocab_size=b.vocab_size if task == "mqar" else len(data.DIARY_WORDS),
        width=b.width,
        num_layers=b.num_layers,
        num_heads=b.num_heads[task],
        mlp_ratio=b.mlp_ratio,
    )
    source = mqar if task == "mqar" else diary
    return probes.trained(
        config, source, steps=b.steps[task], learning_rate=rate, seed=seed, progress=False
    )


def ask(model: OneMemory, task: str, seed: int, budget: Budget) -> list[Row]:
    """One row for each difficulty: the share of its questions that are answered right."""
    if task == "mqar":
        return [
            {"num_facts": n, "num_updates": 0, "accuracy": _pairs(model, n, seed, budget)}
            for n in budget.num_pairs
        ]
    rows, facts = [], budget.num_facts
    for updates in budget.num_updates:
        number = range(budget.questions // facts)
        asked = [data.diary(facts, updates, 0, seed=seed * 10**6 + n) for n in number]
        right, former = probes.diary_answers(model, asked)
        row = {"num_facts": facts, "num_updates": updates, "accuracy": right, "former": former}
        rows.append(row)
    return rows


def _pairs(model: OneMemory, num_pairs: int, seed: int, b: Budget) -> float:
    size = {"batch_size": b.questions // num_pairs, "seed": seed}
    source = data.mqar_batches(num_pairs, b.length, b.vocab_size, **size)
    return probes.accuracy(model, source, batches=1)


def experiment(kind: str, task: str, budget: Budget) -> dict[str, list[Row]]:
    """Choose a memory's learning rate, train all seeds at it, and ask."""
    torch.set_num_threads(1)
    search, models = [], {}
    for rate in budget.learning_rates:
        start = time.perf_counter()
        models[rate] = train(kind, task, rate, 0, budget)
        held_back = mean(row["accuracy"] for row in ask(models[rate], task, CHOICE, budget))
        spent = {"mean_accuracy": held_back, "seconds": time.perf_counter() - start}
        search.append({"memory": kind, "task": task, "learning_rate": rate, "seed": 0} | spent)
    best = max(search, key=lambda row: row["mean_accuracy"])["learning_rate"]
    rows = []
    for seed in range(budget.seeds):
        model = models[best] if seed == 0 else train(kind, task, best, seed, budget)
        which = {"memory": kind, "task": task, "seed": seed, "learning_rate": best}
        rows += [which | row for row in ask(model, task, TEST, budget)]
    return {"search": search, "rows": rows}


def run(budget: Budget, processes: int) -> dict[str, Any]:
    """All memories on both tasks; returns what results/recall.json holds."""
    cases = [(kind, task) for task in ("mqar", "diary") for kind in MEMORIES]
    result: dict[str, Any] = {
        "machine": measure.machine() | {"threads": 1, "processes": processes},
        "budget": asdict(budget),
        "search": [],
        "rows": [],
    }
    fresh = get_context("spawn")  # a process forked from one that used torch may hang
    pool = ProcessPoolExecutor(processes, mp_context=fresh)
    with pool, bar(len(cases), what="recall") as progress:
        jobs = [pool.submit(experiment, kind, task, budget) for kind, task in cases]
        for job in jobs:
            for name, found in job.result().items():
                result[name] += found
            progress.update()
    return result


def report(result: dict[str, Any]) -> None:
    """Print the curves, the mean over seeds at each place."""
    for task, place in (("mqar", "num_facts"), ("diary", "num_updates")):
        rows = [row for row in result["rows"] if row["task"] == task]
        places = sorted({row[place] for row in rows})
        print(f"{task:10}" + "".join(f"{place.removeprefix('num_')} {n:<6}" for n in places))
        for kind in dict.fromkeys(row["memory"] for row in rows):
            mine = [row for row in rows if row["memory"] == kind]
            means = (mean(r["accuracy"] for r in mine if r[place] == n) for n in places)
            width = len(place.removeprefix("num_")) + 7
            print(f"{kind:10}" + "".join(f"{100 * x:<{width}.1f}" for x in means))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    parser.add_argument("--processes", type=int, default=2, help="runs at once, a thread each")
    options = parser.parse_args()
    result = run(QUICK if options.quick else Budget(), options.processes)
    report(result)
    if not options.quick:
        (RESULTS / "recall.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
