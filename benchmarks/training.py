"""Every model trains: its tiny preset on a text, on MQAR and on the diary, towards set targets.

python benchmarks/training.py           train, write results/training.json
python benchmarks/training.py --quick   a small run that writes nothing

The presets get the same batches, steps and seeds, at learning rates of their own. On the text
(`data.our_text`, a token a byte) the loss on the tenth that is held back counts, beside that of
counting pairs (`Bigram`); on the probes the share of right answers, to questions that training
did not ask. Runs go on side by side, a thread each. On a machine that does other things too the
clock says little, so the processor's seconds are kept beside it.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from llmcourse import data, measure, probes
from llmcourse.models import (
    GPT2,
    GPT2Config,
    KimiK3,
    KimiK3Config,
    KimiLinear,
    KimiLinearConfig,
)
from llmcourse.models.bigram import Bigram
from llmcourse.progress import bar
from llmcourse.train import TrainConfig, evaluate, train

RESULTS = Path(__file__).parent / "results"
TEST = 10_002  # seed of the questions; training uses 0, 1 ...
TASKS = ("text", "mqar", "diary")
CORES, MINUTES = 2, 20  # of the processor, at most, for all runs
Row = dict[str, Any]


class Goal(NamedTuple):
    """How a preset is trained on a task, and what every seed must reach.

    target: on the text nats a byte, at most; on a probe the share of right answers, at least;
        None: nothing is asked.
    """

    learning_rate: float
    target: float | None


PRESETS: dict[str, tuple[Any, Any]] = {
    "GPT-2": (GPT2, GPT2Config.tiny()),
    "Kimi Linear": (KimiLinear, KimiLinearConfig.tiny()),
    "Kimi K3": (KimiK3, KimiK3Config.tiny()),
}
# GPT-2 has no convolution that shows a token its neighbours: before it can recall, two layers
# must learn to work together. On the diary they had not after 2,500 steps, so nothing is asked.
GOALS = {
    "GPT-2": {"text": Goal(2e-3, 2.27), "mqar": Goal(1e-3, 0.99), "diary": Goal(1e-3, None)},
    "Kimi Linear": {
        "text": Goal(2e-3, 2.1),
        "mqar": Goal(4e-3, 0.99),
        "diary": Goal(4e-3, 0.75),
    },
    "Kimi K3": {"text": Goal(2e-3, 2.2), "mqar": Goal(2e-3, 0.99), "diary": Goal(3e-3, 0.75)},
}


@dataclass(frozen=True)
class Task:
    """What is trained on, and for how long: the same for every preset.

    knobs: of `data.mqar` or `data.diary`; of the text its context.
    asked: knobs that are others when the questions at the end are asked.
    """

    knobs: dict[str, Any]
    vocab_size: int
    batch_size: int
    steps: int
    asked: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """The tasks, the seeds of each, and how many questions a probe asks at the end."""

    text: Task = Task({"context": 128}, vocab_size=256, batch_size=8, steps=200)
    mqar: Task = Task(
        {"num_pairs": 4, "length": 12, "vocab_size": 16},
        vocab_size=16,
        batch_size=64,
        steps=400,
    )
    diary: Task = Task(
        {"num_facts": (1, 2), "num_updates": (0, 1), "distance": 0},
        vocab_size=len(data.DIARY_WORDS),
        batch_size=32,
        steps=900,
        asked={"num_facts": 2},
    )
    seeds: int = 2
    batches: int = 32  # of questions at the end


def quick() -> Budget:
    """The same, hardly begun."""
    full = Budget()
    tasks = {name: replace(getattr(full, name), batch_size=2, steps=2) for name in TASKS}
    return Budget(**tasks, seeds=1, batches=1)


def text() -> tuple[Tensor, Tensor]:
    """The course's text, a token a byte: what is trained on, and the tenth held back."""
    return data.split(list(data.our_text().encode()))


def probe(task: str, chosen: Task, seed: int, **other: Any) -> data.TaskBatches:
    """The batches of a probe, with some `other` knobs."""
    make = {"mqar": data.mqar_batches, "diary": data.diary_batches}[task]
    return make(**(chosen.knobs | other), batch_size=chosen.batch_size, seed=seed)


def trained(preset: str, task: str, chosen: Task, seed: int) -> nn.Module:
    """A preset after the steps of a task; the seed decides its start and its batches."""
    make, config = PRESETS[preset]
    torch.manual_seed(seed)
    model = make(replace(config, vocab_size=chosen.vocab_size))
    run = TrainConfig(
        chosen.steps,
        batch_size=chosen.batch_size,
        context=chosen.knobs.get("context", 1),  # a probe's batches have their own length
        learning_rate=GOALS[preset][task].learning_rate,
        warmup=chosen.steps // 10,
        seed=seed,
    )
    source = text()[0] if task == "text" else probe(task, chosen, seed)
    train(model, source, run, progress=False)
    return model


def score(model: nn.Module, task: str, chosen: Task, batches: int) -> dict[str, float]:
    """The loss on the text held back, or the share of right answers."""
    if task == "text":
        return {"loss": evaluate(model, text()[1], context=chosen.knobs["context"])}
    asked = probe(task, chosen, TEST, **chosen.asked)
    return {"accuracy": probes.accuracy(model, asked, batches=batches)}


def is_reached(preset: str, task: str, scores: dict[str, float]) -> bool | None:
    """Whether a run meets the target of its preset and task; None where there is none."""
    target = GOALS[preset][task].target
    if target is None:
        return None
    return scores["loss"] <= target if task == "text" else scores["accuracy"] >= target


def experiment(preset: str, task: str, seed: int, budget: Budget) -> Row:
    """One run: what it reached, and how long it took to train."""
    torch.set_num_threads(1)
    chosen = getattr(budget, task)
    clock, processor = time.perf_counter(), time.process_time()
    model = trained(preset, task, chosen, seed)
    spent = {
        "seconds": time.perf_counter() - clock,
        "processor_seconds": time.process_time() - processor,
    }
    scores = score(model, task, chosen, budget.batches)
    which = {"preset": preset, "task": task, "seed": seed} | GOALS[preset][task]._asdict()
    return which | scores | {"reached": is_reached(preset, task, scores)} | spent


def run(budget: Budget, processes: int) -> dict[str, Any]:
    """All presets on all tasks; returns what results/training.json holds."""
    cases = [
        (preset, task, seed, budget)
        for seed in range(budget.seeds)
        for task in TASKS
        for preset in PRESETS
    ]
    rows = []
    fresh = get_context("spawn")  # a process forked from one that used torch may hang
    pool = ProcessPoolExecutor(processes, mp_context=fresh)
    with pool, bar(len(cases), what="training") as progress:
        for job in [pool.submit(experiment, *case) for case in cases]:
            rows.append(job.result())
            progress.update()
    ids, held_back = text()
    pairs = Bigram.fit(ids, budget.text.vocab_size)
    return {
        "machine": measure.machine() | {"threads": 1, "processes": processes},
        "budget": asdict(budget),
        "cores": CORES,
        "most_minutes": MINUTES,
        "minutes": sum(row["processor_seconds"] for row in rows) / 60 / CORES,
        "bigram_loss": evaluate(pairs, held_back, context=len(held_back)),
        "rows": rows,
    }


def report(result: dict[str, Any]) -> None:
    """Print a line for each run, and the time of all."""
    print(f"{'preset':14}{'task':8}{'seed':>4}{'score':>9}{'target':>8}{'processor s':>13}")
    for row in result["rows"]:
        value = row.get("loss", row.get("accuracy"))
        target = "-" if row["target"] is None else row["target"]
        missed = "  missed" if row["reached"] is False else ""
        print(
            f"{row['preset']:14}{row['task']:8}{row['seed']:4}{value:9.3f}{target:>8}"
            f"{row['processor_seconds']:13.1f}{missed}"
        )
    minutes, loss = result["minutes"], result["bigram_loss"]
    print(f"{minutes:.1f} minutes on {CORES} cores, at most {MINUTES}; pairs: {loss:.3f} nats")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    parser.add_argument("--processes", type=int, default=2, help="runs at once, a thread each")
    options = parser.parse_args()
    result = run(quick() if options.quick else Budget(), options.processes)
    report(result)
    if not options.quick:
        (RESULTS / "training.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
