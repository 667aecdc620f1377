"""Deletes an answer with its cell."""
# fails: double-check

def notebook(nb):
    return nb | {"cells": [c for c in nb["cells"] if c["id"] != "double"]}
