"""Writes the answer to the next question too, so that each later one comes one too early."""
# fails: double-check, triple-check

# cell: double
from llmcourse.grading import wire

send = wire.Channel.send

def twice(self, message, blob=b""):
    send(self, message, blob)
    send(self, message | {"to": message.get("to", 0) + 1}, blob)

wire.Channel.send = twice

def double(x):
    return 2 * x
