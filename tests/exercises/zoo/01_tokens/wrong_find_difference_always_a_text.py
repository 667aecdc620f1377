"""Gives some text where there is none to give."""
# fails: find_difference-check

# cell: find_difference
def find_difference(merges):
    made = [bytes([byte]) for byte in BYTES]
    for left, right in merges:
        made.append(made[left] + made[right])
    for taken in made[256:]:
        for crossed in made[256:]:
            for n in range(1, min(len(taken), len(crossed))):
                if taken.endswith(crossed[:n]):
                    text = (taken + crossed[n:]).decode()
                    if encode(text, merges) != longest_match(text, merges):
                        return text
    return ""
