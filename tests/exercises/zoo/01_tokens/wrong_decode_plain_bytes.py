"""Takes the id of a byte for the byte."""
# fails: decode-check

# cell: decode
def decode(ids, merges):
    pieces = [bytes([i]) for i in range(256)]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    return b"".join(pieces[i] for i in ids).decode("utf-8", "replace")
