"""Empties the list of merges that it is given."""
# fails: encode-check, find_difference-check

# cell: encode
def encode(text, merges):
    rows, n = words(text), 256
    while merges:
        left, right = merges.pop(0)
        for row in rows:
            for i in range(len(row) - 1, -1, -1):
                if row[i : i + 2] == [left, right]:
                    row[i : i + 2] = [n]
        n += 1
    return [i for row in rows for i in row]
