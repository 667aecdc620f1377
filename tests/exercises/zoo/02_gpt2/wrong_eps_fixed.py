"""Ignores the eps it is given and uses the model's."""
# fails: layer_norm-check

# cell: layer_norm
def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + EPS) * weight + bias
