"""Never returns."""
# fails: double-check

# cell: double
def double(x):
    while True:
        pass
