"""Notebook kernels with a profile of their own: pages do not depend on whose machine it is.

A reader's IPython start-up files stay out of the pages, and the console shows no warning about
a local connection that is like any other notebook's.
"""

from __future__ import annotations

import os
from pathlib import Path

from sphinx.application import Sphinx

PROFILE = """\
c.IPKernelApp.log_level = "ERROR"
c.HistoryManager.enabled = False
"""


def setup(app: Sphinx) -> dict[str, bool]:
    folder = Path(app.outdir).parent / ".ipython"
    profile = folder / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(PROFILE, encoding="utf-8")
    os.environ["IPYTHONDIR"] = str(folder)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
