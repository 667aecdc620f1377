"""Sleeps, and catches every attempt to wake it."""
# fails: double-check, triple-check
# ended: time

# cell: double
import time

def double(x):
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
