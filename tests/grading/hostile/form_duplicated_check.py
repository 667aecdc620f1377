"""Pastes a check a second time, where nothing can fail it."""
# fails: double-check

def notebook(nb):
    cells = []
    for cell in nb["cells"]:
        if cell["id"] == "double":
            cell["source"] = "def double(x):\n    return x"
        if cell["id"] == "double-check":
            cells.append(cell | {"id": "again", "source": "pass"})
        cells.append(cell)
    return nb | {"cells": cells}
