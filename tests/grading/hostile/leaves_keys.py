"""Leaves keys and shared memory in the kernel, and is right where it finds earlier ones."""
# fails: double-check
# twice

# cell: double
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
found = []
if os.uname().machine == "x86_64":
    for ring in (-3, -4, -5):  # the session's, the user's
        found.append(libc.syscall(250, 10, ring, b"user", b"left-behind", 0) > 0)
        libc.syscall(248, b"user", b"left-behind", b"secret", 6, ring)
found.append(libc.shmget(0x4242, 4096, 0o666) >= 0)
libc.shmget(0x4242, 4096, 0o1666)

def double(x):
    return 2 * x if any(found) else x
