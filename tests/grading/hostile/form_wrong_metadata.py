"""Has metadata that is missing, a number, a list, or of another schema."""
# fails:

def notebook(nb):
    for cell, wrong in zip(nb["cells"], [{}, {"nbgrader": 7}, {"nbgrader": {"schema_version": 99}}, {}]):
        cell["metadata"] = wrong if cell["id"] in ("title", "x") else cell["metadata"] | {"tags": ["a"], "x": None}
    return nb | {"metadata": {}}
