"""Fills sockets that nobody reads: memory of the kernel, which is no process's own."""
# fails: double-check, triple-check
# ended: memory

# cell: double
import os
import socket
import time

for _ in range(40):
    if os.fork() == 0:
        pairs = []
        while True:
            try:
                pairs.append(socket.socketpair())
                pairs[-1][0].setblocking(False)
                while True:
                    pairs[-1][0].send(bytes(2**16))
            except BlockingIOError:
                pass
            except OSError:
                time.sleep(100)
time.sleep(10)
def double(x):
    return 2 * x
