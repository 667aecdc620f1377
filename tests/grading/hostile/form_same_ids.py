"""Gives all cells one id, and one grade_id."""
# fails: double-check, triple-check

def notebook(nb):
    for cell in nb["cells"]:
        cell["id"] = "one"
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"]["grade_id"] = "double"
    return nb
