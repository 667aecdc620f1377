"""Rebuilds the matrix from numbers: no gradient."""
# fails: transition-check


# cell: transition
def transition(k, beta):
    rows = [
        [float(i == j) - float(beta * a * b) for j, b in enumerate(k)] for i, a in enumerate(k)
    ]
    return torch.tensor(rows, dtype=k.dtype)
