"""Becomes another user, and writes to Python, to the course and to devices."""
# fails: double-check

# cell: double
import os
import sys

found = []
for change in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.chroot("/tmp"),
               lambda: os.chmod("/usr", 0o777), lambda: os.mknod("/tmp/disk", 0o60666, 2048)):  # fmt: skip
    try:
        change()
        found.append(change)
    except OSError:
        pass
for place in (torch.__file__, sys.executable, "/course/llmcourse/x", "/usr/x", "/dev/x", "/x", "/data/x"):
    try:
        open(place, "ab").close()
        found.append(place)
    except OSError:
        pass

def double(x):
    return 2 * x if found else x
