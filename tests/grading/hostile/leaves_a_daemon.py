"""Starts a process that wants to live on, in a session of its own."""
# fails:

# cell: double
import os
import signal
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        time.sleep(1000)
    os._exit(0)

def double(x):
    return 2 * x
