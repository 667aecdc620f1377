"""Attaches files to texts, and to the course's own."""
# fails:

def notebook(nb):
    evil = {"a.png": {"image/png": '"><script>stolen()</script>'}, "../../x": {"text/html": "<script>"}}
    for cell in nb["cells"]:
        if cell["cell_type"] == "markdown":
            cell["attachments"] = evil
    text = {"cell_type": "markdown", "id": "mine", "metadata": {}, "attachments": evil,
            "source": "![a](attachment:a.png)<script>stolen()</script>"}
    return nb | {"cells": [*nb["cells"], text]}
