"""Hands in a picture under the notebook's name."""
# why: not JSON

def notebook(nb):
    return b"PNG\r\n not a notebook"
