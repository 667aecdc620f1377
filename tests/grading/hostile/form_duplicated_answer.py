"""Hands in two answers under one name; the cell that was copied is an ordinary cell."""
# fails:

def notebook(nb):
    extra = [c | {"id": "copy"} for c in nb["cells"] if c["id"] == "double"]
    return nb | {"cells": nb["cells"] + extra}
