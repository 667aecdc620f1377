"""Makes an answer a raw cell; its text counts as code again."""
# fails:

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] == "double":
            cell["cell_type"] = "raw"
            del cell["outputs"], cell["execution_count"]
    return nb
