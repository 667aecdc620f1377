"""The cache holds exactly what was appended, and says how much that is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcourse.cache import Cache, KVCache, LatentCache, RecurrentState


def make(batch=2, capacity=50, **options):
    return KVCache(batch, 3, 4, 5, capacity=capacity, **options)


def tokens(T, batch=2, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    k = torch.randn(batch, T, 3, 4, generator=g, dtype=dtype)
    return k, torch.randn(batch, T, 3, 5, generator=g, dtype=dtype)


@given(pieces=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_any_pieces_give_back_the_whole_in_order(pieces):
    total = sum(pieces)
    k, v = tokens(total)
    cache = make(capacity=total)
    start = 0
    for piece in pieces:
        end = start + piece
        k_all, v_all = cache.append(k[:, start:end], v[:, start:end])
        assert torch.equal(k_all, k[:, :end])
        assert torch.equal(v_all, v[:, :end])
        assert cache.length == end
        start = end


def test_bytes_are_those_of_the_tokens_held_not_of_the_capacity():
    cache = make(capacity=1000)
    assert cache.bytes == 0
    for T in (1, 6, 1):
        cache.append(*tokens(T))
    assert cache.bytes == 8 * 2 * 3 * (4 + 5) * 4  # tokens, sequences, heads, K + V, bytes
    half = make(dtype=torch.bfloat16)
    half.append(*tokens(8))
    assert half.bytes == cache.bytes // 2


def test_growing_moves_each_token_a_bounded_number_of_times(monkeypatch):
    moved = []
    grown = KVCache._grown

    def counting(self, x, room):
        moved.append(self.length)
        return grown(self, x, room)

    monkeypatch.setattr(KVCache, "_grown", counting)
    cache, (k, v) = make(capacity=4096), tokens(1)
    for _ in range(3000):
        cache.append(k, v)
    # Doubling moves 1 + 2 + 4 + ... < 2 T tokens, for keys and for values.
    assert sum(moved) < 2 * 2 * 3000


def test_space_taken_never_exceeds_the_capacity():
    cache, (k, v) = make(capacity=5), tokens(1)
    for _ in range(5):
        cache.append(k, v)
    assert cache._held[0].shape[2] == 5


def test_beyond_the_capacity_is_refused_and_changes_nothing():
    cache = make(capacity=5)
    k, v = tokens(4)
    cache.append(k, v)
    with pytest.raises(ValueError, match=r"cache: got 4 \+ 2 tokens, needs at most .* 5"):
        cache.append(*tokens(2))
    assert cache.length == 4
    k_all, _ = cache.append(*tokens(1, seed=1))
    assert torch.equal(k_all[:, :4], k)


@pytest.mark.parametrize(
    "k_shape, v_shape, message",
    [
        ((2, 1, 3, 5), (2, 1, 3, 5), r"k: got \[2, 1, 3, 5\]"),
        ((1, 1, 3, 4), (1, 1, 3, 5), r"k: got \[1, 1, 3, 4\]"),
        ((2, 3, 4), (2, 3, 5), r"k: got \[2, 3, 4\]"),
        ((2, 1, 3, 4), (2, 1, 2, 5), r"v: got \[2, 1, 2, 5\]"),
        ((2, 1, 3, 4), (2, 2, 3, 5), "v: got 2 tokens, needs k's 1"),
    ],
)
def test_a_wrong_shape_is_named_and_changes_nothing(k_shape, v_shape, message):
    cache = make()
    with pytest.raises(ValueError, match=message):
        cache.append(torch.zeros(k_shape), torch.zeros(v_shape))
    assert cache.length == 0


def test_what_is_no_tensor_is_refused():
    with pytest.raises(ValueError, match="k: got NoneType, needs a tensor"):
        make().append(None, None)


@pytest.mark.parametrize("name", ["batch", "capacity"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: got 1.5"):
        make(**{name: 1.5})
    with pytest.raises(ValueError, match=f"{name}: got 0"):
        make(**{name: 0})


def test_reorder_selects_sequences_and_may_change_their_number():
    cache, (k, v) = make(), tokens(3)
    cache.append(k, v)
    index = torch.tensor([1, 0, 1])
    cache.reorder(index)
    more_k, more_v = tokens(1, batch=3)
    k_all, v_all = cache.append(more_k, more_v)
    assert torch.equal(k_all, torch.cat([k[index], more_k], dim=1))
    assert torch.equal(v_all, torch.cat([v[index], more_v], dim=1))


def test_a_copy_and_its_original_live_apart():
    cache, (k, v) = make(), tokens(3)
    cache.append(k, v)
    twin = cache.copy()
    first, second = tokens(1, seed=1), tokens(1, seed=2)
    for _ in range(20):
        kept = cache.append(*first)
        other = twin.append(*second)
    assert torch.equal(kept[0], torch.cat([k, *[first[0]] * 20], dim=1))
    assert torch.equal(other[1], torch.cat([v, *[second[1]] * 20], dim=1))
    assert twin.capacity == cache.capacity


def test_keys_are_kept_in_the_dtype_of_the_cache():
    cache = make(dtype=torch.bfloat16)
    k, v = tokens(3)
    k_all, _ = cache.append(k, v)
    assert torch.equal(k_all, k.bfloat16())


def test_a_backward_pass_is_right_or_refused_never_wrong():
    cache, (k, v) = make(), tokens(2)
    k.requires_grad_()
    cache.append(k, v)
    held, _ = cache.append(*tokens(1))  # room for four: the next token is written in place
    loss = held.square().sum()
    assert torch.equal(*torch.autograd.grad(loss, k, retain_graph=True), 2 * k)
    cache.append(*tokens(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def latents(T, batch=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, T, 6, generator=g), torch.randn(batch, T, 3, generator=g)


@given(pieces=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_any_pieces_of_latents_give_back_the_whole_side_by_side(pieces):
    total = sum(pieces)
    c, s = latents(total)
    cache = LatentCache(2, 6, 3, capacity=total)
    for piece, more_c, more_s in zip(
        pieces, c.split(pieces, 1), s.split(pieces, 1), strict=True
    ):
        end = cache.length + piece
        assert torch.equal(cache.append(more_c, more_s), torch.cat([c, s], -1)[:, :end])
        assert (cache.length, cache.bytes) == (end, 2 * end * (6 + 3) * 4)
    with pytest.raises(ValueError, match=rf"cache: got {total} \+ 2 tokens, needs at most"):
        cache.append(*latents(2))
    assert cache.length == total


def test_latents_reorder_and_copy_as_keys_and_values_do():
    cache, (c, s) = LatentCache(2, 6, 3, dtype=torch.float64), latents(3)
    cache.append(c, s)
    twin, index = cache.copy(), torch.tensor([1, 0, 1])
    twin.reorder(index)
    more_c, more_s = latents(1, batch=3)
    held = twin.append(more_c, more_s)
    expected = torch.cat(
        [torch.cat([c[index], more_c], 1), torch.cat([s[index], more_s], 1)], 2
    )
    assert torch.equal(held, expected.double()) and isinstance(twin, LatentCache)
    assert (cache.length, twin.length) == (3, 4)
    assert torch.equal(cache.append(*latents(1, seed=1))[:, :3], torch.cat([c, s], 2).double())


@pytest.mark.parametrize(
    "c_shape, s_shape, message",
    [
        ((2, 1, 5), (2, 1, 3), r"latents: got \[2, 1, 5\], needs \[B, T, R\] = \[2, T, 6\]"),
        ((2, 6), (2, 3), r"latents: got \[2, 6\]"),
        ((2, 1, 6), (1, 1, 3), r"shared: got \[1, 1, 3\], needs \[B, T, S\] = \[2, T, 3\]"),
        ((2, 1, 6), (2, 2, 3), "shared: got 2 tokens, needs latents' 1"),
    ],
)
def test_latents_of_a_wrong_shape_are_named_and_change_nothing(c_shape, s_shape, message):
    cache = LatentCache(2, 6, 3)
    with pytest.raises(ValueError, match=message):
        cache.append(torch.zeros(c_shape), torch.zeros(s_shape))
    assert cache.length == 0


def test_latents_need_sizes_but_may_lack_shared_channels():
    for sizes, message in [
        ((0, 6, 3), "batch"),
        ((2, 0, 3), "rank"),
        ((2, 6, -1), "shared_width"),
    ]:
        with pytest.raises(ValueError, match=f"{message}: got"):
            LatentCache(*sizes)
    with pytest.raises(ValueError, match="capacity: got 0"):
        LatentCache(2, 6, 3, capacity=0)
    cache, (c, _) = LatentCache(2, 6, 0), latents(4)
    assert torch.equal(cache.append(c, c[..., :0]), c)


def test_a_model_cache_is_its_layers():
    cache = Cache([make(), make()])
    for layer in cache:
        layer.append(*tokens(3))
    assert len(cache) == 2
    assert cache.length == 3
    assert cache.bytes == cache[0].bytes + cache[1].bytes
    twin = cache.copy()
    twin.reorder(torch.tensor([0]))
    twin[0].append(*tokens(1, batch=1))
    assert (cache.length, twin.length) == (3, 4)
    assert twin[1].bytes == cache[1].bytes // 2


def test_a_cache_without_layers_is_refused():
    with pytest.raises(ValueError, match="layers: got none"):
        Cache([])


def page(batch=2, **options):
    return RecurrentState(batch, 3, 4, 5, **options)


def test_a_state_has_one_size_whatever_it_has_read():
    memory = page()
    assert torch.equal(memory.state, torch.zeros(2, 3, 4, 5)) and memory.length == 0
    size = 2 * 3 * 4 * 5 * 4  # sequences, heads, K, V, bytes
    assert memory.bytes == size and page(dtype=torch.float64).bytes == 2 * size
    for tokens in (1, 70, 1):
        memory.update(torch.ones(2, 3, 4, 5), tokens)
        assert memory.bytes == size
    assert memory.length == 72


def test_a_state_is_kept_in_its_own_precision():
    memory = page()
    memory.update(torch.ones(2, 3, 4, 5, dtype=torch.float64), 1)
    assert memory.state.dtype == torch.float32


@pytest.mark.parametrize(
    "state, tokens, message",
    [
        (torch.zeros(1, 3, 4, 5), 1, r"state: got \[1, 3, 4, 5\], needs \[2, 3, 4, 5\]"),
        (torch.zeros(2, 3, 5, 4), 1, r"state: got \[2, 3, 5, 4\]"),
        (None, 1, "state: got NoneType, needs a tensor"),
        (torch.ones(2, 3, 4, 5), 0, "tokens: got 0"),
    ],
)
def test_a_state_that_does_not_fit_is_named_and_changes_nothing(state, tokens, message):
    memory = page()
    with pytest.raises(ValueError, match=message):
        memory.update(state, tokens)
    assert memory.length == 0 and not memory.state.any()


def test_a_state_without_sequences_or_with_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="batch: got 0"):
        RecurrentState(0, 3)
    with pytest.raises(ValueError, match="sizes: got -1"):
        RecurrentState(1, 3, -1)
    assert RecurrentState(2, 0, 5).bytes == 0  # a convolution over one token


def test_states_reorder_and_copy_as_keys_and_values_do():
    memory = page()
    numbers = torch.arange(120.0).view(2, 3, 4, 5)
    memory.update(numbers, 7)
    twin = memory.copy()
    twin.reorder(torch.tensor([1, 0, 1]))
    assert torch.equal(twin.state, numbers[[1, 0, 1]]) and twin.length == 7
    twin.update(twin.state + 1, 1)
    assert torch.equal(memory.state, numbers) and memory.length == 7


def test_when_every_beam_has_ended_what_is_left_can_still_be_copied():
    cache = Cache([make(), LatentCache(2, 3, 1), page()])
    cache.reorder(torch.tensor([], dtype=torch.int64))
    assert cache.copy().bytes == 0


def test_gradients_flow_through_a_state():
    memory, x = page(), torch.ones(2, 3, 4, 5, requires_grad=True)
    memory.update(memory.state + 3 * x, 1)
    memory.update(2 * memory.state, 1)
    assert torch.equal(*torch.autograd.grad(memory.state.sum(), x), 6 * torch.ones_like(x))


def test_a_cache_takes_any_memory_also_caches_of_parts():
    cache = Cache([Cache([RecurrentState(2, 3, 8), make()]), page()], made_for="a model")
    for part in (*cache[0], cache[1]):
        part.append(*tokens(3)) if isinstance(part, KVCache) else part.update(part.state, 3)
    assert cache.length == 3
    assert cache.bytes == sum(part.bytes for part in (*cache[0], cache[1]))
    twin = cache.copy()
    twin.reorder(torch.tensor([0]))
    assert twin.made_for == "a model"
    assert 2 * twin.bytes == cache.bytes
