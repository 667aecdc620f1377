"""Attention residuals: a sublayer chooses which earlier ones it reads, instead of their sum."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from llmcourse.layers.norm import RMSNorm
from llmcourse.ops.common import compute_dtype, require, require_count, without_autocast


class AttentionResidual(nn.Module):
    """Softmax attention over depth, for each token alone (arXiv:2603.15031).

    h = sum_i a_i s_i, a = softmax_i(w . RMSNorm(s_i)): keys are normalised, values are not.
    The query w is learned and the same for all tokens; at 0, its start, h is the mean.
    width: D, the number of channels.
    eps: of the norm.
    forward: S sources [..., D] of one shape -> [..., D] in their dtype; the weights and the sum
        are computed in float32 unless the sources are float64, also under autocast.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = RMSNorm(width, eps)
        self.query = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.query.weight)

    def forward(self, sources: Sequence[Tensor]) -> Tensor:
        values = _stacked(sources)  # [S, ..., D]
        with without_autocast(values):
            mixed = torch.einsum("s...,s...d->...d", self._attend(values), values)
        return mixed.to(sources[0].dtype)

    def weights(self, sources: Sequence[Tensor]) -> Tensor:
        """What each of S sources [..., D] counts for: [S, ...], which sum to 1 over S."""
        values = _stacked(sources)
        with without_autocast(values):
            return self._attend(values)

    def _attend(self, values: Tensor) -> Tensor:
        scores = self.norm(values) @ self.query.weight[0].to(values.dtype)
        return scores.softmax(dim=0)


class ResidualBlocks:
    """The sources of attention residuals while a model runs through its layers.

        residuals = ResidualBlocks(embedding, block_size)
        for each sublayer, with its own AttentionResidual `mix`:
            residuals.add(sublayer(norm(mix(residuals.sources))))

    embedding: [..., D], the first source, a block of its own.
    block_size: sublayers (two a layer) whose outputs are added up into one source. 1 is the
        full form, in which every sublayer reads every earlier one; Kimi K3 takes 24.
    blocks: the closed blocks, oldest first.
    prefix: the running sum of the open one; a next output that has no room there closes it.
    """

    def __init__(self, embedding: Tensor, block_size: int) -> None:
        require_count("block_size", block_size)
        self.blocks: list[Tensor] = []
        self.prefix = embedding
        self._size, self._room = block_size, 0

    @property
    def sources(self) -> list[Tensor]:
        """What the next sublayer reads: the closed blocks and the running sum."""
        return [*self.blocks, self.prefix]

    def add(self, output: Tensor) -> None:
        """Add a sublayer's output [..., D] to the open block, or begin a new block with it."""
        shape = list(self.prefix.shape)
        require(list(output.shape) == shape, "output", list(output.shape), str(shape))
        if self._room == 0:
            self.blocks.append(self.prefix)
            self.prefix, self._room = output, self._size
        else:
            self.prefix = self.prefix + output
        self._room -= 1


def _stacked(sources: Sequence[Tensor]) -> Tensor:
    """Sources as one tensor [S, ..., D], in the precision to compute in."""
    require(len(sources) > 0, "sources", "none", "at least one tensor [..., D]")
    return torch.stack([s.to(compute_dtype(s)) for s in sources])
