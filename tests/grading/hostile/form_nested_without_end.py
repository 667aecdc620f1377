"""Hands in JSON that is nested a million deep."""
# why: not JSON

def notebook(nb):
    return b"[" * 1_000_000 + b"]" * 1_000_000
