"""Looks only at tokens that overlap in one byte."""
# fails: find_difference-check

# cell: find_difference
def find_difference(merges):
    made = [bytes([byte]) for byte in BYTES]
    for left, right in merges:
        made.append(made[left] + made[right])
    for taken in made[256:]:
        for crossed in made[256:]:
            if taken[-1] == crossed[0]:
                text = (taken + crossed[1:]).decode()
                if encode(text, merges) != longest_match(text, merges):
                    return text
    return None
