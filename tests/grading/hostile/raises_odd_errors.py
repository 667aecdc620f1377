"""Raises errors that cannot be made, shown or told."""
# fails: double-check, triple-check

# cell: double
def double(x):
    raise ExceptionGroup("many", [ValueError(1), SystemExit(0)])

# cell: triple
class Odd(UnicodeDecodeError):
    def __init__(self):
        pass
    def __str__(self):
        raise self
    __repr__ = __str__

def triple(x):
    raise Odd()
