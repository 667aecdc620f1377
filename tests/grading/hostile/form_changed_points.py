"""Gives its checks a million points, and adds one of its own."""
# fails: double-check

def notebook(nb):
    import copy
    for cell in nb["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"]["points"] = 1_000_000
        if cell["id"] == "double":
            cell["source"] = "def double(x):\n    return x"
    extra = copy.deepcopy(nb["cells"][-1]) | {"id": "extra", "source": "1000000.0"}
    extra["metadata"]["nbgrader"] |= {"grade_id": "extra", "points": 1_000_000}
    return nb | {"cells": [*nb["cells"], extra]}
