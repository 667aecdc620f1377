"""A write is a step down the gradient; tokens that write twice are twice as many tokens."""


# cell: step
def step(state, k, v, beta):
    error = k @ state - v
    return state - beta * (k.unsqueeze(1) * error.unsqueeze(0))


# cell: recurrent
def recurrent(q, k, v, beta, state):
    pages = [state]
    for t in range(len(q)):
        error = k[t] @ pages[-1] - v[t]
        pages.append(pages[-1] - beta[t] * k[t].unsqueeze(1) * error)
    return torch.einsum("tk,tkv->tv", q, torch.stack(pages[1:])), pages[-1]


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    error = k @ state - v
    return k.unsqueeze(1) * error.unsqueeze(0)


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    def one_after_the_other(x, y):
        return torch.stack([x, y], dim=2).flatten(1, 2)

    k, v = one_after_the_other(k1, k2), one_after_the_other(v1, v2)
    beta = one_after_the_other(b1, b2)
    outputs, states = [], []
    for b in range(q.shape[0]):
        heads = []
        for h in range(q.shape[2]):
            S, rows = state[b, h], []
            for i in range(k.shape[1]):
                S = step(S, k[b, i, h], v[b, i, h], beta[b, i, h])
                if i % 2:
                    rows.append(S.T @ q[b, i // 2, h])
            heads.append(torch.stack(rows))
            states.append(S)
        outputs.append(torch.stack(heads, dim=1))
    return torch.stack(outputs), torch.stack(states).reshape(state.shape)
