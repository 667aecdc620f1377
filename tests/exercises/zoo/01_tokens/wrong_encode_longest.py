"""Takes the longest token that fits: the tokenizer without merges."""
# fails: encode-check, find_difference-check

# cell: encode
def encode(text, merges):
    tokens = [[i] for i in range(256)]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    ids = {tuple(token): i for i, token in enumerate(tokens)}
    result = []
    for word in words(text):
        start = 0
        while start < len(word):
            end = len(word)
            while tuple(word[start:end]) not in ids:
                end -= 1
            result.append(ids[tuple(word[start:end])])
            start = end
    return result
