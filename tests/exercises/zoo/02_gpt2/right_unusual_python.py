"""A lambda, a partial, a decorator, a recursion, a thread and numpy: odd, and right."""

# cell: layer_norm
import functools
import threading
import warnings

import numpy as np


def told(function):
    def wrapper(*args, **kwargs):
        warnings.warn("called", stacklevel=2)
        return function(*args, **kwargs)

    return wrapper


@told
def layer_norm(x, weight, bias, eps, *, axis: "any" = -1):  # noqa: F821
    deviation = x - torch.mean(x, axis, True)
    return (
        weight * deviation * (deviation.var(axis, correction=0, keepdim=True) + eps) ** -0.5
        + bias
    )


# cell: gelu
gelu = lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))  # noqa: E731


# cell: causal_self_attention
def one_head(q, k, v, t):
    """Outputs up to position t, by recursion."""
    if t < 0:
        return []
    weights = torch.softmax(
        (k[:, : t + 1] @ q[:, t, :, None])[..., 0] * q.shape[-1] ** -0.5, -1
    )
    return [*one_head(q, k, v, t - 1), (weights[:, None] @ v[:, : t + 1])[:, 0]]


class Attention:
    def __call__(self, x, params, num_heads):
        wide = torch.addmm(
            params["attn.c_attn.bias"], x.flatten(0, 1), params["attn.c_attn.weight"]
        ).unflatten(0, x.shape[:2])
        heads = [part.chunk(num_heads, dim=-1) for part in wide.chunk(3, dim=-1)]
        found = [
            torch.stack(one_head(*qkv, x.shape[1] - 1), dim=1)
            for qkv in zip(*heads, strict=True)
        ]
        return (
            torch.cat(found, dim=-1) @ params["attn.c_proj.weight"] + params["attn.c_proj.bias"]
        )


causal_self_attention = Attention()


# cell: block
def block(x, params, num_heads):
    found = []

    def run():
        normed = layer_norm(x, params["ln_1.weight"], params["ln_1.bias"], EPS)
        y = x + causal_self_attention(normed, params, num_heads)
        normed = layer_norm(y, params["ln_2.weight"], params["ln_2.bias"], EPS)
        wide = gelu(normed @ params["mlp.c_fc.weight"] + params["mlp.c_fc.bias"])
        found.append(y + wide @ params["mlp.c_proj.weight"] + params["mlp.c_proj.bias"])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0].as_subclass(type("Mine", (torch.Tensor,), {}))


# cell: gpt2_logits
def gpt2_logits(ids, params, num_heads):
    start = torch.nn.functional.embedding(ids, params["wte.weight"])
    start = start + params["wpe.weight"][torch.arange(ids.size(1))]
    x = functools.reduce(lambda x, p: block(x, p, num_heads), params["blocks"], start)
    x = layer_norm(x, params["ln_f.weight"], params["ln_f.bias"], EPS)
    return torch.nn.functional.linear(x, params["wte.weight"])


# cell: count_parameters
def count(layers, D, V, C):
    return V * D + C * D + 2 * D + layers * (12 * D**2 + 13 * D)


def count_parameters(config):
    sizes = np.array([config["width"], config["vocab_size"], config["context_length"]], object)
    return functools.partial(count, config["num_layers"])(*sizes.tolist())


# cell: parallel_block
def parallel_block(x, params, num_heads):
    y = layer_norm(x, params["ln_1.weight"], params["ln_1.bias"], EPS)
    wide = y @ params["mlp.c_fc.weight"] + params["mlp.c_fc.bias"]
    parts = [
        x,
        causal_self_attention(y, params, num_heads),
        gelu(wide) @ params["mlp.c_proj.weight"] + params["mlp.c_proj.bias"],
    ]
    return sum(parts)
