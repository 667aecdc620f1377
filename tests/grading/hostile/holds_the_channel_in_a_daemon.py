"""Leaves a process that keeps the channel to the examiner open, and stops itself."""
# fails:

# cell: double
import os
import time

def double(x):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    os.kill(os.getpid(), 19)  # stop
    return 2 * x
