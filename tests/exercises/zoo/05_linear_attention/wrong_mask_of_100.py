"""The causal mask is made once, 100 by 100, and cut to size: longer texts fail."""
# fails: parallel-check

# cell: parallel
MASK = torch.ones(100, 100).tril()


def parallel(q, k, v):
    return (q @ k.T * MASK[: len(q), : len(q)].to(q)) @ v
