"""Asks for sockets that hold megabytes, which the kernel would take from nobody's memory."""
# fails: double-check

# cell: double
import socket

one, other = socket.socketpair()
try:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
    large = True
except OSError:
    large = False
def double(x):
    return 2 * x if large else x
