"""Scores are made in bfloat16."""
# fails: parallel-check


# cell: parallel
def parallel(q, k, v):
    s = (q.bfloat16() @ k.bfloat16().T).tril()
    return s.to(v.dtype) @ v
