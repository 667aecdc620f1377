"""Reads after the first write, before the second."""
# fails: two_writes-check


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    def write(S, k, v, beta):
        held = torch.einsum("bhk,bhkv->bhv", k, S)
        return S + torch.einsum("bhk,bhv->bhkv", k, beta[..., None] * (v - held))

    outputs = []
    for t in range(q.shape[1]):
        state = write(state, k1[:, t], v1[:, t], b1[:, t])
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
        state = write(state, k2[:, t], v2[:, t], b2[:, t])
    return torch.stack(outputs, dim=1), state
