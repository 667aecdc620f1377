"""The probes as experiments: what is counted, and that a model learns what is asked."""

import pytest
import torch

from llmcourse import probes
from llmcourse.data import DIARY_WORDS, diary, diary_batches, mqar_batches
from llmcourse.models import OneMemoryConfig


class Knows(torch.nn.Module):
    """Answers by a rule: `answer(words so far)` is a word or an id."""

    def __init__(self, answer, vocab_size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.answer, self.vocab_size = answer, vocab_size

    def forward(self, ids):
        logits = torch.zeros(*ids.shape, self.vocab_size)
        for row, scores in zip(ids.tolist(), logits, strict=True):
            for t in range(len(row)):
                scores[t, self.answer(row[: t + 1])] = 1
        return logits


def lookup(row):
    """MQAR read exactly: the token after the first place where the last one stood."""
    place = row.index(row[-1])
    return row[place + 1] if place < len(row) - 1 else 0


def test_accuracy_is_the_share_of_questions_answered():
    def half(row):  # knows what stood at a place divisible by 4: every second pair
        return lookup(row) if row.index(row[-1]) % 4 == 0 else 0

    for answer, expected in [(lookup, 1.0), (half, 0.5), (lambda row: 0, 0.0)]:
        source = mqar_batches(4, 16, 20, batch_size=3, seed=0)
        assert probes.accuracy(Knows(answer, 20), source, batches=2) == expected
        assert source.state == 2


def city(row, which):
    """Of the cities that a diary says of the person asked for, one by its place."""
    words = [DIARY_WORDS[i] for i in row]
    if words[-1] != "?":
        return 0
    said = [
        words[t + 3]
        for t, word in enumerate(words[:-4])
        if word == words[-3] and words[t + 1] in ("lives", "moved")
    ]
    return DIARY_WORDS.index(said[which])


def test_answers_are_right_former_or_something_else():
    diaries = [diary(4, 9, 2, seed=seed) for seed in range(5)]
    moved = [len(before) > 0 for entry in diaries for before in entry.former]
    share = sum(moved) / len(moved)
    assert 0 < share < 1
    for answer, expected in [
        (lambda row: city(row, -1), (1, 0)),
        (lambda row: city(row, 0), (1 - share, share)),  # as if nobody had moved
        (lambda row: 0, (0, 0)),
    ]:
        answers = probes.diary_answers(Knows(answer, len(DIARY_WORDS)), diaries)
        assert answers == pytest.approx(expected)


def test_a_city_to_which_somebody_returned_is_right_not_former():
    entry = next(
        e
        for e in (diary(1, 60, 0, seed=seed) for seed in range(99))
        if e.answers[0] in e.former[0]
    )
    answers = probes.diary_answers(Knows(lambda row: city(row, -1), len(DIARY_WORDS)), [entry])
    assert answers == (1, 0)


def test_a_small_model_learns_to_recall_and_one_seed_makes_one_model():
    def model(steps, seed=0):
        config = OneMemoryConfig("delta", 8, width=32, num_layers=1, mlp_ratio=1)
        source = mqar_batches(2, 8, 8, batch_size=16, seed=0)
        return probes.trained(
            config, source, steps=steps, learning_rate=0.01, seed=seed, progress=False
        )

    held_back = mqar_batches(2, 8, 8, batch_size=64, seed=1)
    assert probes.accuracy(model(150), held_back) > 0.9  # 0.25: one of the values at random
    weights = [model(2, seed).blocks[0].mixer.qkv.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_training_leaves_the_callers_randomness_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    source = diary_batches(2, 1, 0, batch_size=2, seed=0)
    config = OneMemoryConfig("linear", len(DIARY_WORDS), width=8, num_layers=1)
    probes.trained(config, source, steps=1, learning_rate=0.01, progress=False)
    assert torch.equal(torch.rand(3), expected)


def test_what_cannot_be_asked_is_refused():
    model = Knows(lambda row: 0, 20)
    source = mqar_batches(4, 16, 20, batch_size=3, seed=0)
    with pytest.raises(ValueError, match="batches: got 0"):
        probes.accuracy(model, source, batches=0)
    with pytest.raises(ValueError, match="diaries: got none"):
        probes.diary_answers(model, [])
    with pytest.raises(ValueError, match="steps: got 0"):
        probes.trained(OneMemoryConfig("delta", 8), source, steps=0, learning_rate=0.1)
