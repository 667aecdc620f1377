"""Decodes each token by itself, so that characters of several tokens break."""
# fails: decode-check

# cell: decode
def decode(ids, merges):
    pieces = [bytes([byte]) for byte in BYTES]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    return "".join(pieces[i].decode("utf-8", "replace") for i in ids)
