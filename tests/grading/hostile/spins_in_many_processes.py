"""Has other processes spin while it sleeps, so that the sum takes more than is allowed."""
# fails: double-check, triple-check
# ended: (processor|time)

# cell: double
import os
import time

def double(x):
    for _ in range(8):
        if os.fork() == 0:
            while True:
                pass
    while True:
        try:
            time.sleep(30)
        except KeyboardInterrupt:
            pass
