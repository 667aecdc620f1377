"""The two probes as experiments: train a model on one, then ask what it recalls."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from llmcourse.data import DIARY_WORDS, NOT_ASKED, Diary, TaskBatches, diary_rows
from llmcourse.models.one_memory import OneMemory, OneMemoryConfig
from llmcourse.ops.common import require, require_count
from llmcourse.train import TrainConfig, train


class Answers(NamedTuple):
    """Shares of the answers to a diary's questions; what is left names something else."""

    right: float
    former: float  # a city where the person lived before


def trained(
    config: OneMemoryConfig,
    source: TaskBatches,
    *,
    steps: int,
    learning_rate: float,
    seed: int = 0,
    progress: bool = True,
) -> OneMemory:
    """A new model after `steps` batches of a task; the seed decides its start.

    The learning rate rises for a tenth of the steps, then falls along a cosine to a tenth.
    """
    require_count("steps", steps)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = OneMemory(config)
    run = TrainConfig(
        steps, learning_rate=learning_rate, warmup=steps // 10, weight_decay=0.01, seed=seed
    )
    train(model, source, run, progress=progress)
    return model


def accuracy(model: nn.Module, source: TaskBatches, *, batches: int = 8) -> float:
    """The share of a task's questions to which the likeliest token is the answer.

    source: its next `batches` batches are asked; give it another seed than in training.
    """
    require_count("batches", batches)
    right = asked = 0
    for inputs, targets in islice(source, batches):
        scored = targets != NOT_ASKED
        right += int((_likeliest(model, inputs) == targets)[scored].sum())
        asked += int(scored.sum())
    require(asked > 0, "source", "batches without a question", "at least one")
    return right / asked


def diary_answers(model: nn.Module, diaries: Sequence[Diary]) -> Answers:
    """What a model answers to every question of some diaries."""
    require(len(diaries) > 0, "diaries", "none", "at least one")
    inputs, targets = diary_rows(diaries)
    said = _likeliest(model, inputs)
    right = former = asked = 0
    for entry, row, scored in zip(diaries, said, targets != NOT_ASKED, strict=True):
        words = [DIARY_WORDS[i] for i in row[scored].tolist()]
        for word, answer, before in zip(words, entry.answers, entry.former, strict=True):
            right += word == answer
            former += word != answer and word in before
        asked += len(words)
    return Answers(right / asked, former / asked)


@torch.no_grad()
def _likeliest(model: nn.Module, inputs: Tensor) -> Tensor:
    """The likeliest next token after each one: [B, T] -> [B, T]."""
    device = next(model.parameters()).device
    return model(inputs.to(device)).argmax(dim=-1).cpu()
