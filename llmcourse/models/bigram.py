"""The bigram model: the baseline that every other model must beat. Its memory is one token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from llmcourse.data import token_row
from llmcourse.ops.common import require, require_count


@dataclass(frozen=True)
class BigramConfig:
    """vocab_size: tokens. context_length: how long a text may be; the last token counts."""

    vocab_size: int
    context_length: int = 1 << 30


class Bigram(nn.Module):
    """A table of logits [V, V]: row i holds log p(next token | token i). Nothing is cached."""

    def __init__(self, config: BigramConfig) -> None:
        super().__init__()
        self.config = config
        size = (config.vocab_size, config.vocab_size)
        self.table = nn.Parameter(torch.zeros(size), requires_grad=False)

    @classmethod
    def fit(
        cls, ids: Sequence[int] | Tensor, vocab_size: int, *, extra: float = 0.03
    ) -> "Bigram":
        """Count which token follows which, each pair `extra` times more than was seen.

        ids: one row of at least two tokens, each from 0 to vocab_size - 1. Raises ValueError
        otherwise, or unless `extra` is more than 0: no pair is impossible.
        """
        require_count("vocab_size", vocab_size)
        row = token_row(ids)
        require(len(row) >= 2, "ids", list(row.shape), "a row of two or more")
        _check_ids(row, vocab_size)
        require(extra > 0, "extra", extra, "more than 0")
        counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        one = torch.ones(len(row) - 1, dtype=torch.float64)
        counts.index_put_((row[:-1], row[1:]), one, accumulate=True)
        counts = counts + extra
        model = cls(BigramConfig(vocab_size))
        model.table.copy_((counts / counts.sum(dim=1, keepdim=True)).log())
        return model

    def forward(self, ids: Tensor, cache: None = None) -> Tensor:
        """ids [..., T] int64 -> logits [..., T, V]: the rows of the tokens."""
        _check_ids(ids, self.config.vocab_size)
        return self.table[ids]

    def new_cache(self, batch: int = 1) -> None:
        """Return None: there is nothing to remember but the token that is being read."""


def _check_ids(ids: Tensor, vocab_size: int) -> None:
    require(ids.dtype == torch.int64, "ids", ids.dtype, "int64")
    require(ids.numel() > 0, "ids", list(ids.shape), "at least one token")
    low, high = (int(x) for x in ids.aminmax())
    fine = low >= 0 and high < vocab_size
    require(fine, "ids", f"ids from {low} to {high}", f"ids from 0 to {vocab_size - 1}")
