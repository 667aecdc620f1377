"""Encodes the whole text as one row, joining across words."""
# fails: encode-check

# cell: encode
def encode(text, merges):
    row = [i for word in words(text) for i in word]
    for n, (left, right) in enumerate(merges):
        new = []
        for i in row:
            if new and new[-1] == left and i == right:
                new[-1] = 256 + n
            else:
                new.append(i)
        row = new
    return row
