"""Takes it for granted that x has the axes B, T, D."""
# fails: gelu-check

# cell: gelu
def gelu(x):
    B, T, D = x.shape
    y = x.reshape(B * T, D)
    y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    return y.reshape(B, T, D)
