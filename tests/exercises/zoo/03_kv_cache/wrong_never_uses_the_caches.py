"""The whole text through new caches at every step: right tokens, and nothing saved."""
# fails: generate-check


# cell: generate
def generate(params, ids, num_tokens):
    for _ in range(num_tokens):
        x = params["token_embedding"][ids] + params["position_embedding"][: ids.shape[1]]
        for layer in params["layers"]:
            q, k, v = project(x, layer, params["num_heads"])
            x = finish(x, cached_attention(q, k, v, KVCache()), layer)
        new = logits(x, params)[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
    return ids
