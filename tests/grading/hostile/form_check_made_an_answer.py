"""Makes a check an answer, so that its text is kept and a human has to grade it."""
# fails: double-check

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] == "double":
            cell["source"] = "def double(x):\n    return x"
        if cell["id"] == "double-check":
            cell["metadata"]["nbgrader"] |= {"solution": True, "locked": False, "points": 99}
            cell["source"] = "4.0"
    return nb
