"""Returns a list that holds itself."""
# fails: double-check
# says: holding itself

# cell: double
def double(x):
    answer = [x]
    answer.append(answer)
    return answer
