"""Tries all texts of up to three of the letters, and gives up."""
# fails: find_difference-check

# cell: find_difference
from itertools import product


def find_difference(merges):
    letters = sorted({chr(BYTES[i]) for pair in merges for i in pair if i < 256})
    for length in (2, 3):
        for text in map("".join, product(letters, repeat=length)):
            if encode(text, merges) != longest_match(text, merges):
                return text
    return None
