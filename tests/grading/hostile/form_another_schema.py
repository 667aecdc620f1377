"""Hands in a notebook of a format that is not there yet."""
# why: damaged

def notebook(nb):
    return nb | {"nbformat": 99, "worksheets": 7}
