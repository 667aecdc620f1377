"""Deletes a cell that the course owns; it is put back."""
# fails:

def notebook(nb):
    return nb | {"cells": [c for c in nb["cells"] if c["id"] != "imports"]}
