"""Sends JSON that is nested a million deep."""
# fails: double-check, triple-check
# ended: not JSON

# cell: double
from llmcourse.grading import wire

def send(self, message, blob=b""):
    text = b'{"to": 1, "value": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    self.sock.sendall(wire.HEAD.pack(len(text), 0) + text)

wire.Channel.send = send
