"""What the second key holds is read without a gradient."""
# fails: two_writes-check


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    outputs = []
    for t in range(q.shape[1]):
        held = torch.einsum("bhk,bhkv->bhv", k1[:, t], state)
        change = b1[:, t, :, None] * (v1[:, t] - held)
        state = state + torch.einsum("bhk,bhv->bhkv", k1[:, t], change)
        held = torch.einsum("bhk,bhkv->bhv", k2[:, t], state).detach()
        change = b2[:, t, :, None] * (v2[:, t] - held)
        state = state + torch.einsum("bhk,bhv->bhkv", k2[:, t], change)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1), state
