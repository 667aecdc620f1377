"""Has two thousand cells of its own."""
# fails:

def notebook(nb):
    many = [{"cell_type": "code", "id": f"n{i}", "metadata": {}, "source": "", "outputs": [],
             "execution_count": None} for i in range(2_000)]
    return nb | {"cells": nb["cells"] + many}
