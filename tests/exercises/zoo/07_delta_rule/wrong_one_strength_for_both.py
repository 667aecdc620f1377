"""Writes twice with b1."""
# fails: two_writes-check


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    outputs = []
    for t in range(q.shape[1]):
        for k, v in ((k1, v1), (k2, v2)):
            held = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
            change = b1[:, t, :, None] * (v[:, t] - held)
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], change)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1), state
