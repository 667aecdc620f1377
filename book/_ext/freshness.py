"""Builds that notice every change, and no other.

Sphinx re-reads a page when the page changes, and the execution cache knows a notebook by its
cells. Both miss a change of the package that the cells import. Here the cache's folder carries
a fingerprint of all that a cell's result depends on, and since the folder's name is part of
Sphinx's environment, a new name makes Sphinx read every page again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import matplotlib
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

EXECUTED = ["llmcourse", "benchmarks/results", "book/references.bib"]  # what cells read
RENDERED = ["_config.yml", "_toc.yml", "book/_ext", "book/chapters.yml"]
LIBRARIES = ["torch", "numpy", "matplotlib", "tokenizers", "transformers"]


def files(root: Path, names: list[str]) -> Iterator[Path]:
    """The files under `names` in a fixed order, without what Python or an editor leaves."""
    for name in names:
        path = root / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in found:
            parts = file.relative_to(root).parts
            hidden = any(part.startswith((".", "__pycache__")) for part in parts)
            if file.is_file() and not hidden:
                yield file


def fingerprint(root: Path, names: list[str]) -> str:
    """A hash of the names and contents of files and of the libraries' versions."""
    digest = hashlib.sha256()
    for file in files(root, names):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}\0".encode())
    return digest.hexdigest()[:16]


def choose_cache(app: Sphinx, config: Config) -> None:
    """Give this state of the package its own cache and drop those of earlier states."""
    caches = Path(app.outdir).parent / ".jupyter_cache"
    mine = caches / fingerprint(Path(app.srcdir), EXECUTED)
    for other in caches.glob("*"):
        if other.is_dir() and other != mine:
            shutil.rmtree(other)
    config.nb_execution_cache_path = str(mine)
    config.course_rendering = fingerprint(Path(app.srcdir), RENDERED)


def warm_fonts(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Let matplotlib list the fonts now: in a notebook it would say so on the page."""
    if docnames and not list(Path(matplotlib.get_cachedir()).glob("fontlist-*.json")):
        from matplotlib import font_manager  # noqa: F401


def forget_failures(app: Sphinx, error: Exception | None) -> None:
    """After warnings read everything again, or the next build would pass in silence."""
    if error or app._warncount:
        (Path(app.doctreedir) / "environment.pickle").unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("course_rendering", "", "env", str)
    app.connect("config-inited", choose_cache, priority=100)
    app.connect("env-before-read-docs", warm_fonts)
    app.connect("build-finished", forget_failures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
