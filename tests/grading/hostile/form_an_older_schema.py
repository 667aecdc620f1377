"""Hands in a notebook as an editor of ten years ago wrote it."""
# why: damaged

def notebook(nb):
    return {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": "none"}
