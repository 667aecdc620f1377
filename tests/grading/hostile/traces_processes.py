"""Traces another process, or reads its memory."""
# fails: double-check

# cell: double
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    import time
    time.sleep(20)
    os._exit(0)
found = [libc.ptrace(16, pid, 0, 0) == 0 for pid in (1, child, os.getppid())]
os.kill(child, 9)

def double(x):
    return 2 * x if any(found) else x
