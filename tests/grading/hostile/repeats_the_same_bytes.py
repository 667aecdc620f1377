"""Sends one tensor of some size and refers to it a hundred thousand times."""
# fails: double-check, triple-check
# ended: too many bytes

# cell: double
from llmcourse.grading import wire

send = wire.Channel.send

def bomb(self, message, blob=b""):
    form = ["T", "float32", [2**20], 0, 2**22, False]
    send(self, message | {"value": ["l", [form] * 100_000]}, bytes(2**22))

def double(x):
    wire.Channel.send = bomb
    return 2 * x
