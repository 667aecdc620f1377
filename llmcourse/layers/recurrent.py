"""What the layers with a memory rule share: which form of the rule runs, and on which state."""

from types import ModuleType

from torch import Tensor

from llmcourse.cache import RecurrentState
from llmcourse.ops.common import compute_dtype, require


def remember(rule: ModuleType, *inputs: Tensor, memory: RecurrentState | None) -> Tensor:
    """What a rule reads for the tokens of `inputs`, without a scale on the queries.

    rule: a module of `llmcourse.ops`; `chunked` reads a piece, `step` a single token.
    inputs: q, k [B, T, H, K], v [B, T, H, V] and what else the rule takes.
    memory: what came before; these tokens are added to it. None: nothing, and nothing is kept.
    Returns o [B, T, H, V]. Raises ValueError, changing nothing, for another memory.
    """
    if memory is None:
        return rule.chunked(*inputs, scale=1.0)[0]
    q, _, v = inputs[:3]
    B, T, H, K = q.shape
    require_memory(memory, [B, H, K, v.shape[-1]])
    if T == 1:
        o, state = rule.step(*(x[:, 0] for x in inputs), memory.state, scale=1.0)
        o = o.unsqueeze(1)
    else:
        o, state = rule.chunked(*inputs, scale=1.0, initial_state=memory.state)
    memory.update(state, T)
    return o


def require_memory(memory: object, shape: list[int]) -> None:
    """Refuse anything but a `RecurrentState` of this shape."""
    state = getattr(memory, "state", None)
    got = type(memory).__name__ if state is None else list(state.shape)
    fits = isinstance(memory, RecurrentState) and got == shape
    require(fits, "memory", got, f"a RecurrentState {shape}")


def new_state(like: Tensor, batch: int, *sizes: int) -> RecurrentState:
    """A state of zeros beside a layer's weight: on its device, in the dtype that ops keep."""
    return RecurrentState(batch, *sizes, dtype=compute_dtype(like), device=like.device)
