"""Writes as much as it can wherever it can, then answers rightly."""
# fails:

# cell: double
import os

def fill(folder):
    written = 0
    try:
        for i in range(1000):
            with open(f"{folder}/{i}", "wb") as file:
                for _ in range(64):
                    written += file.write(bytes(2**20))
    except OSError:
        pass
    return written

total = sum(fill(f) for f in ("/tmp", "/dev/shm", "/submission", "/dev", "/", "/usr", "/course"))

def double(x):
    return 2 * x if total <= 3 * 256 * 2**20 else x
