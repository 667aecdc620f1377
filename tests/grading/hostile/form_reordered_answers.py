"""Swaps its answers; that is its own affair."""
# fails: double-check

def notebook(nb):
    cells = nb["cells"]
    at = {c["id"]: i for i, c in enumerate(cells)}
    cells[at["double"]], cells[at["triple"]] = cells[at["triple"]], cells[at["double"]]
    return nb
