"""Joins the first pair from the left that has a merge, whatever its rank."""
# fails: encode-check, find_difference-check

# cell: encode
def encode(text, merges):
    known = {tuple(pair): 256 + n for n, pair in enumerate(merges)}
    result = []
    for row in words(text):
        i = 0
        while i + 1 < len(row):
            if (row[i], row[i + 1]) in known:
                row[i : i + 2] = [known[row[i], row[i + 1]]]
                i = 0
            else:
                i += 1
        result += row
    return result
