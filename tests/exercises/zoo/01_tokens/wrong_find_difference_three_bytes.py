"""Tries only the three-letter texts that two pairs of single bytes make."""
# fails: find_difference-check

# cell: find_difference
def find_difference(merges):
    for first in merges:
        for second in merges:
            if first[1] == second[0] and max(first + second) < 256:
                text = bytes(BYTES[i] for i in first + second[1:]).decode()
                if encode(text, merges) != longest_match(text, merges):
                    return text
    return None
