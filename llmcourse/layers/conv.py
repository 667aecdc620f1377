"""The short convolution before a memory: each token sees its neighbours."""

import torch
from torch import Tensor, nn

from llmcourse.cache import RecurrentState
from llmcourse.layers.recurrent import new_state, require_memory
from llmcourse.ops import conv
from llmcourse.ops.common import require_count


class ShortConvolution(nn.Module):
    """Each channel becomes a weighted sum of its last W tokens.

    width: D, the number of channels.
    size: W, the tokens seen, the current one included.
    forward: x [B, T, D] -> [B, T, D]. With a `memory` (from `new_memory`), the T tokens follow
        those read before; it keeps the last W - 1.
    """

    def __init__(self, width: int, size: int = 4) -> None:
        super().__init__()
        require_count("size", size)
        self.weight = nn.Parameter(torch.randn(width, size) * size**-0.5)

    def forward(self, x: Tensor, memory: RecurrentState | None = None) -> Tensor:
        if memory is None:
            return conv.causal(x, self.weight)[0]
        D, W = self.weight.shape
        require_memory(memory, [x.shape[0], W - 1, D])
        y, state = conv.causal(x, self.weight, initial_state=memory.state)
        memory.update(state, x.shape[1])
        return y

    def new_memory(self, batch: int = 1) -> RecurrentState:
        """The memory of `batch` sequences before their first token: [B, W - 1, D], zeros."""
        return new_state(self.weight, batch, self.weight.shape[1] - 1, self.weight.shape[0])
