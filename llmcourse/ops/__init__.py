"""Pure functions, one file a memory rule; every rule offers the same forms of one function.

They work with autograd and torch.compile. The transforms of torch.func (vmap, grad, jvp) are
not supported: the chunked forms have backward passes of their own, and g and beta are looked
at.
"""
