"""Attention is taken from llmcourse."""
# fails: cached_attention-check, generate-check


# cell: cached_attention
def cached_attention(q, k, v, cache):
    from llmcourse.ops import softmax

    return softmax.parallel(q, *cache.append(k, v))
