"""Goes through the merges once and joins each only where it first stands."""
# fails: encode-check, find_difference-check

# cell: encode
def encode(text, merges):
    result = []
    for row in words(text):
        for n, pair in enumerate(merges):
            for i in range(len(row) - 1):
                if row[i : i + 2] == list(pair):
                    row[i : i + 2] = [256 + n]
                    break
        result += row
    return result
