"""Hands in a notebook without cells; every check is put back, and scores nothing."""
# fails: double-check, triple-check

def notebook(nb):
    return nb | {"cells": []}
