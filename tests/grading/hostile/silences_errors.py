"""Has IPython show no traceback, so that a failed test has no output."""
# fails: double-check

# cell: double
shell = get_ipython()
shell.set_custom_exc((BaseException,), lambda *args, **kwargs: [])
shell._showtraceback = shell.showtraceback = lambda *args, **kwargs: None

def double(x):
    return x
