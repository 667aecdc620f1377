"""Has null bytes and a source that Python cannot read."""
# fails: double-check

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] == "double":
            cell["source"] += "\n\0\n\f"
    return nb
