"""Marks cells as collapsed and skipped, so that a human grader sees none of them."""
# fails:

def notebook(nb):
    for cell in nb["cells"]:
        cell["metadata"] |= {"jupyter": {"source_hidden": True, "outputs_hidden": True},
                             "collapsed": True, "tags": ["remove-cell", "skip-execution"]}
    return nb
