"""After prefill the prompt's last token is run again."""
# fails: generate-check


# cell: generate
def generate(params, ids, num_tokens):
    caches = [KVCache() for _ in params["layers"]]
    start, new = 0, ids
    for step in range(num_tokens + 1):
        end = start + new.shape[1]
        x = (
            params["token_embedding"][new]
            + params["position_embedding"][(start - 1) * (start > 0) : end - (start > 0)]
        )
        for layer, cache in zip(params["layers"], caches):
            q, k, v = project(x, layer, params["num_heads"])
            x = finish(x, cached_attention(q, k, v, cache), layer)
        new = logits(x, params)[:, -1].argmax(dim=-1, keepdim=True)
        if step == 0:
            new, start = ids[:, -1:], end
            continue
        ids = torch.cat([ids, new], dim=1)
        start = end
    return ids
