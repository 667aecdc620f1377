"""Both writes read the page that the token found, and are added together."""
# fails: two_writes-check


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    outputs = []
    for t in range(q.shape[1]):
        changes = []
        for k, v, beta in ((k1, v1, b1), (k2, v2, b2)):
            held = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
            change = beta[:, t, :, None] * (v[:, t] - held)
            changes.append(torch.einsum("bhk,bhv->bhkv", k[:, t], change))
        state = state + changes[0] + changes[1]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1), state
