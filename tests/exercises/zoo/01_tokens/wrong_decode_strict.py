"""Raises where the bytes are not valid UTF-8."""
# fails: decode-check

# cell: decode
def decode(ids, merges):
    pieces = [bytes([byte]) for byte in BYTES]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    return b"".join(pieces[i] for i in ids).decode()
