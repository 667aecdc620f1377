"""A new token gets the position of the token before it."""
# fails: generate-check


# cell: generate
def generate(params, ids, num_tokens):
    caches = [KVCache() for _ in params["layers"]]
    start, new = 0, ids
    for _ in range(num_tokens):
        end = caches[0].length + new.shape[1]
        x = (
            params["token_embedding"][new]
            + params["position_embedding"][start : start + new.shape[1]]
        )
        for layer, cache in zip(params["layers"], caches):
            q, k, v = project(x, layer, params["num_heads"])
            x = finish(x, cached_attention(q, k, v, cache), layer)
        new = logits(x, params)[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
        start = end - 1
    return ids
