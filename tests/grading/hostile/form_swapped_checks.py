"""Swaps the checks' names and texts."""
# fails: double-check, triple-check

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] == "double":
            cell["source"] = "def double(x):\n    return x"
        names = {"double-check": "triple-check", "triple-check": "double-check"}
        if cell["id"] in names:
            cell["metadata"]["nbgrader"]["grade_id"] = names[cell["id"]]
    return nb
