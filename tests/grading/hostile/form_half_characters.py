"""Has halves of characters in its text, which no file in UTF-8 can hold."""
# fails:

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] == "double":
            cell["source"] += "\n# \ud800"
    nb["cells"].append({"cell_type": "markdown", "id": "odd", "metadata": {}, "source": "\udfff"})
    return nb
