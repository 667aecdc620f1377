"""Sends outputs by the million, past the limit that the worker sets itself."""
# fails:

# cell: double
from llmcourse.grading import worker

worker.MOST_OUTPUTS = worker.MOST_TEXT = 10**9
for i in range(300):
    display({"text/plain": "x" * 50_000}, raw=True)

def double(x):
    return 2 * x
