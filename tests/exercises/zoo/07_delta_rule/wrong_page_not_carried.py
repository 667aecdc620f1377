"""Every token writes on the page that was given, and the last one's page is returned."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    pages = [step(state, *token) for token in zip(k, v, beta)]
    return torch.stack([S.T @ q_t for S, q_t in zip(pages, q)]), pages[-1]
