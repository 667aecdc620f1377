"""Moves a check to the front, before the answers."""
# fails: triple-check
# says: not in its place

def notebook(nb):
    moved = [c for c in nb["cells"] if c["id"] == "triple-check"]
    return nb | {"cells": moved + [c for c in nb["cells"] if c["id"] != "triple-check"]}
