"""Hands in the exercise as it was given out; earlier points are no points of this one."""
# fails: double-check, triple-check

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] in ("double", "triple"):
            cell["source"] = f"def {cell['id']}(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
    return nb
