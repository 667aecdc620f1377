"""Sends tensors of negative, enormous and contradictory sizes."""
# fails: double-check, triple-check
# ended: (size|shape)

# cell: double
from llmcourse.grading import wire

def tensor(self, x):
    shapes = [[-1], [2**39, 2**39, 0], [True], [[1]], [5]]
    return ["T", "float32", shapes[len(self.blob) % 5], 0, 4, False]

def double(x):
    wire.Packer.tensor = lambda self, x: ["T", "float32", [-4], 0, 16]
    return 2 * x
