"""Hands in JSON that is no notebook."""
# why: no notebook

def notebook(nb):
    return b"[1, 2, 3]"
