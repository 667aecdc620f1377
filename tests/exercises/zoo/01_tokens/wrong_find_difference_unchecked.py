"""Returns the first overlap of two tokens without comparing the encodings."""
# fails: find_difference-check

# cell: find_difference
def find_difference(merges):
    made = [bytes([byte]) for byte in BYTES]
    for left, right in merges:
        made.append(made[left] + made[right])
    for taken in made[256:]:
        for crossed in made[256:]:
            for n in range(1, min(len(taken), len(crossed))):
                if taken.endswith(crossed[:n]):
                    return (taken + crossed[n:]).decode()
    return None
