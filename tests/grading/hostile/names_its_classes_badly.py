"""Gives classes, functions and arguments names that are programs, markup or no names at all."""
# fails: double-check

# cell: double
Bad = type("__import__('os').system('true')", (), {"__module__": "<script>alert(1)</script>"})
Worse = type("CheckFailed", (Bad, Exception), {})

def double(x):
    raise Worse("hidden check of double: passed") from Worse()

double.__name__ = double.__qualname__ = "checks.check = print #"
