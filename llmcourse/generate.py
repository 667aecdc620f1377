"""From logits to text: choosing the next token, and generation by any model with any cache."""

import math
import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from llmcourse.ops.common import require, require_count, require_number, require_tensor


def next_token_probabilities(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """The distribution to draw the next token from; the settings apply in the order given.

    logits: [..., V]; -inf excludes a token.
    temperature: divides the logits; 0 puts everything on the largest (the lowest id on ties).
    top_k: keep the k most likely tokens (lowest ids on ties); more than V keeps all.
    top_p: keep the smallest set of the most likely tokens that has at least this probability
        (Holtzman et al. 2020); the token that crosses the line is kept.
    Returns [..., V] with rows that sum to 1, float64 for float64 and else float32.
    Raises ValueError for a negative temperature, top_k < 1, top_p outside (0, 1], NaN or +inf.
    """
    _check_settings(temperature, top_k, top_p)
    _check_logits(logits)
    x = logits.double()  # a temperature as small as 1e-300 still divides
    x = x - x.amax(dim=-1, keepdim=True)
    x, ids = x.sort(dim=-1, descending=True, stable=True)
    if temperature == 0:
        temperature, top_k = 1.0, 1
    p = (x / temperature).softmax(dim=-1)
    if top_k is not None and top_k < p.shape[-1]:
        p[..., top_k:] = 0
        p = p / p.sum(dim=-1, keepdim=True)
    if top_p is not None and top_p < 1:
        before = p.cumsum(dim=-1).roll(1, dims=-1)  # the probability of all likelier tokens
        before[..., 0] = 0
        p = p.where(before < top_p, 0)
        p = p / p.sum(dim=-1, keepdim=True)
    p = torch.zeros_like(p).scatter(-1, ids, p)
    return p if logits.dtype == torch.float64 else p.float()


def sample(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative probability passes a uniform random number.

    probabilities: [..., V], each row with a positive sum. uniform: [...], in [0, 1).
    Returns ids [...] int64; a token of probability 0 is never drawn.
    Raises ValueError for negative or non-finite probabilities and numbers outside [0, 1).
    """
    for name, x in {"probabilities": probabilities, "uniform": uniform}.items():
        require(isinstance(x, Tensor), name, type(x).__name__, "a tensor")
    require(probabilities.dim() >= 1, "probabilities", "one number", "[..., V]")
    p = probabilities.double()
    valid = (
        bool((p >= 0).all()) and bool((p.sum(dim=-1) > 0).all()) and bool(p.isfinite().all())
    )
    require(valid, "probabilities", "other values", "finite and none negative, some positive")
    shape = list(p.shape[:-1])
    require(list(uniform.shape) == shape, "uniform", list(uniform.shape), f"one a row, {shape}")
    inside = bool(((uniform >= 0) & (uniform < 1)).all())
    require(inside, "uniform", "numbers outside", "numbers in [0, 1)")
    cumulative = p.cumsum(dim=-1)
    total = cumulative[..., -1:].contiguous()
    target = uniform.double().unsqueeze(-1) * total
    ids = torch.searchsorted(cumulative, target, right=True)
    last = torch.searchsorted(
        cumulative, total
    )  # rounding may bring the target up to the total
    return torch.minimum(ids, last).squeeze(-1)


def stream(
    model: Any,
    ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: Collection[int] = (),
    use_cache: bool = True,
) -> Iterator[Tensor]:
    """Generate, and hand over each token as soon as it is chosen.

    model: called as `model(ids, cache)`; has `new_cache(batch)` and `config.context_length`.
    ids: the prompts, [B, T] int64, all of one length.
    temperature, top_k, top_p: as in `next_token_probabilities`.
    seed: the same seed gives the same tokens; None draws from PyTorch's global generator.
    stop: token ids that end a sequence. A finished row repeats its stop token until every row
        is finished; then the stream ends.
    use_cache: False reads the whole sequence again for each token: the same tokens, slower.
    Yields [B] int64, at most `max_new_tokens` times.
    Raises ValueError, at the call, for bad settings, an empty prompt, or a prompt that does not
    fit into the context together with what is to be read while generating.
    """
    _check_settings(temperature, top_k, top_p)
    _check_prompt(model, ids, max_new_tokens)
    stop = _token_ids(stop)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    generator = None if seed is None else _generator(seed)
    return _stream(model, ids, max_new_tokens, settings, generator, stop, use_cache)


def generate(model: Any, ids: Tensor, max_new_tokens: int, **settings: Any) -> Tensor:
    """The prompts and what follows them, [B, T + n]; everything else as in `stream`."""
    new = stream(model, ids, max_new_tokens, **settings)
    return torch.cat([ids, *(token[:, None] for token in new)], dim=1)


@torch.no_grad()
def _stream(
    model: Any,
    ids: Tensor,
    max_new_tokens: int,
    settings: dict[str, Any],
    generator: torch.Generator | None,
    stop: Collection[int],
    use_cache: bool,
) -> Iterator[Tensor]:
    B = ids.shape[0]
    cache = model.new_cache(B) if use_cache else None
    stops = torch.tensor(list(stop), dtype=torch.int64, device=ids.device)
    finished = torch.zeros(B, dtype=torch.bool, device=ids.device)
    unread = token = ids
    for _ in range(max_new_tokens):
        logits = model(unread, cache)[:, -1]
        uniform = torch.rand(B, generator=generator, dtype=torch.float64, device="cpu")
        drawn = sample(next_token_probabilities(logits, **settings), uniform.to(ids.device))
        token = torch.where(finished, token, drawn) if finished.any() else drawn
        yield token
        finished |= torch.isin(token, stops)
        if finished.all():
            return
        ids = torch.cat([ids, token[:, None]], dim=1)
        unread = token[:, None] if use_cache else ids


def _check_settings(temperature: float, top_k: int | None, top_p: float | None) -> None:
    needs = "a finite number, 0 (greedy) or more"
    require_number("temperature", temperature, lambda x: 0 <= x < math.inf, needs)
    if top_k is not None:
        require_count("top_k", top_k)
    if top_p is not None:
        require_number("top_p", top_p, lambda x: 0 < x <= 1, "None or a number in (0, 1]")


def _token_ids(stop: Collection[int]) -> list[int]:
    """The stop tokens as a list of ints; a tensor's or an array's elements count as ints."""
    try:
        return [operator.index(token) for token in stop]
    except TypeError:
        require(False, "stop", repr(stop), "a collection of token ids")
        raise


def _generator(seed: int) -> torch.Generator:
    fine = type(seed) is int and -(2**63) <= seed < 2**64
    require(fine, "seed", repr(seed), "None or an int of at most 64 bits")
    return torch.Generator().manual_seed(seed)


def _check_logits(logits: Tensor) -> None:
    require_tensor("logits", logits)
    require(not logits.is_meta, "logits", "a tensor on the meta device", "one with values")
    fine = logits.dim() >= 1 and logits.numel() > 0
    require(fine, "logits", f"{logits.dtype} {list(logits.shape)}", "floats [..., V]")
    largest = logits.amax(dim=-1)  # NaN where any is NaN, -inf where every token is excluded
    require(
        bool(largest.isfinite().all()), "logits", "NaN, +inf or only -inf", "finite numbers"
    )


def _check_prompt(model: Any, ids: Tensor, max_new_tokens: int) -> None:
    fine = isinstance(ids, Tensor) and ids.dtype == torch.int64 and ids.dim() == 2
    got = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
    require(fine, "ids", got, "an int64 tensor [B, T]")
    require(ids.numel() > 0, "ids", "an empty prompt", "at least one token in each row")
    require_count("max_new_tokens", max_new_tokens, least=0)
    limit = model.config.context_length
    require(
        ids.shape[1] <= limit, "ids", f"{ids.shape[1]} tokens", f"at most {limit}, the context"
    )
    # The last new token is never read, so it may stand one past the context.
    room = limit - ids.shape[1] + 1
    needs = f"at most {room}: the context is {limit} and the prompt has {ids.shape[1]} tokens"
    require(max_new_tokens <= room, "max_new_tokens", max_new_tokens, needs)
