"""Computes in float32, whatever came in, and casts back."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    S, k, v = state.float(), k.float(), v.float()
    return (S + beta.float() * torch.outer(k, v - S.T @ k)).to(state.dtype)
