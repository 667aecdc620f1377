"""Asks to be run by another program, in another language."""
# fails:

def notebook(nb):
    kernel = {"name": "bash", "display_name": "rm", "language": "bash", "argv": ["touch", "/tmp/x"]}
    return nb | {"metadata": {"kernelspec": kernel, "language_info": {"name": "bash"}}}
