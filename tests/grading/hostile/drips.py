"""Sends its answer byte by byte, slower than anyone waits."""
# fails: double-check, triple-check
# ended: time

# cell: double
import time

from llmcourse.grading import wire

def double(x):
    wire.Channel.send = send
    return 2 * x

def send(self, message, blob=b""):
    for _ in range(10_000):
        self.sock.sendall(b"\0")
        time.sleep(0.5)
