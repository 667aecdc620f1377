"""Hands in a notebook whose cells are numbers."""
# why: damaged

def notebook(nb):
    return nb | {"cells": [1, 2, 3]}
