"""Comes with outputs of tests that passed."""
# fails: double-check

def notebook(nb):
    for cell in nb["cells"]:
        if cell["id"] == "double":
            cell["source"] = "def double(x):\n    return x"
        if cell["cell_type"] == "code":
            cell["outputs"] = [{"output_type": "execute_result", "data": {"text/plain": "4.0"},
                                "metadata": {}, "execution_count": 1}]
            cell["execution_count"] = 1
    return nb
