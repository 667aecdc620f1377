"""Announces a message of many terabytes."""
# fails: double-check, triple-check
# ended: too large

# cell: double
from llmcourse.grading import wire

def send(self, message, blob=b""):
    self.sock.sendall(wire.HEAD.pack(2, 2**60) + b"{}")

wire.Channel.send = send
