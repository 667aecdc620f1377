"""Takes less memory than is allowed, in each of many processes."""
# fails: double-check, triple-check
# ended: memory

# cell: double
import os
import time

def double(x):
    for _ in range(12):
        if os.fork() == 0:
            kept = bytearray(os.urandom(2**20)) * 200
            time.sleep(60)
    time.sleep(30)
