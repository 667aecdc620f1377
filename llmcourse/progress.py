"""A progress bar on stdout: one line that is rewritten, in a terminal, a notebook or a page."""

import sys
from typing import Any

from tqdm import tqdm


def bar(total: int, *, what: str, start: int = 0, show: bool = True) -> tqdm:
    """A bar with the share done, the time left and the speed; `show=False` prints nothing.

    total: steps in all; start: steps that were done before. what: the word at the left.
    """
    in_notebook = type(sys.stdout).__module__.startswith("ipykernel.")
    file: Any = _NotebookLine() if in_notebook else sys.stdout
    return tqdm(
        total=total,
        initial=start,
        desc=what,
        disable=not show,
        file=file,
        ncols=80,
        mininterval=0.5,
    )


class _NotebookLine:
    """A line in a notebook: an output that is replaced, so that a built page keeps the last.

    Stdout would do in JupyterLab, but a page that is built shows every state below the other.
    """

    encoding = "utf-8"  # tqdm then draws with blocks

    def __init__(self) -> None:
        self.handle: Any = None

    def write(self, text: str) -> None:
        line = {"text/plain": text.strip("\r\n")}
        if not line["text/plain"].strip():
            return
        from IPython.display import display

        if self.handle is None:
            self.handle = display(line, raw=True, display_id=True)
        else:
            self.handle.update(line, raw=True)

    def flush(self) -> None:
        """Nothing is held back."""
