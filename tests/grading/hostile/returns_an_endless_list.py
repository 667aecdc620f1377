"""Returns a list whose iteration never ends, and whose length is negative."""
# fails: double-check

# cell: double
class Endless(list):
    def __iter__(self):
        while True:
            yield 0
    def __len__(self):
        return -1

def double(x):
    return Endless([1] * 400_000)
