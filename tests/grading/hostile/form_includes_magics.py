"""Runs the tests and files by IPython's magics, and escapes to a shell."""
# fails: double-check

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] == "double":
            cell["source"] = ("!ls -la / /root /srv; cat /*/*/.course_secret\n%run /course/x\n%who\n%history\n"
                              "def double(x):\n    get_ipython().system('id')\n    return x")
    return nb
