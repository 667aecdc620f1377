"""Takes a token for a text: BPE makes each token of its own text."""
# fails: find_difference-check

# cell: find_difference
def find_difference(merges):
    made = [bytes([byte]) for byte in BYTES]
    for left, right in merges:
        made.append(made[left] + made[right])
    for token in made[256:]:
        if encode(token.decode(), merges) != longest_match(token.decode(), merges):
            return token.decode()
    return None
