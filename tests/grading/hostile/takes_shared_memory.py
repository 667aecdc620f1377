"""Takes memory that is shared, which no limit of one process counts."""
# fails: double-check, triple-check
# ended: memory

# cell: double
import mmap

def double(x):
    shared = mmap.mmap(-1, 2**32)
    for i in range(0, 2**32, 4096):
        shared[i] = 1
    return 2 * x
