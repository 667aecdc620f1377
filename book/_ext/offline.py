"""A site that stands alone: nothing from another host, and no file that no page asks for."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

MATHJAX = ["tex-mml-chtml.js", "output/chtml/fonts/woff-v2/*.woff"]
# Shipped by the themes and extensions, loaded by none of our pages.
UNUSED = [
    "**/*.map",
    "**/*.ttf",
    "**/*.LICENSE.txt",
    "**/fa-brands-400.woff2",
    "**/fa-regular-400.woff2",
    "scripts/fontawesome.js",
    "images/logo_*",
    "sphinx-thebe*",
    "locales/*/*/*",
    "**/*.png",
]
# A folded cell is named by its own words; a list's children would have to be its items; and
# an id belongs to one element of a page.
UNTRUE = [
    ' aria-label="Toggle hidden content"',
    ' role="list"',
    ' role="doc-biblioentry"',
    ' id="exercise-content"',
    ' id="solution-content"',
]


def mathjax_folder() -> Path:
    """Where the package sphinx-mathjax-offline keeps MathJax (its name is no identifier)."""
    spec = find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the book needs `pip install sphinx-mathjax-offline`")
    return Path(spec.origin).parent / "static" / "mathjax"


def ship_mathjax(static: Path) -> None:
    """Copy the one script and its fonts, each only once."""
    source = mathjax_folder()
    for pattern in MATHJAX:
        for file in source.glob(pattern):
            target = static / "mathjax" / file.relative_to(source)
            if not target.exists() or target.stat().st_size != file.stat().st_size:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def finish(app: Sphinx, error: Exception | None) -> None:
    """Complete the static folder and clear it of dead weight."""
    if error or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    ship_mathjax(static)
    for pattern in UNUSED:
        for file in static.glob(pattern):
            file.unlink()


def tidy_page(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Drop sphinx-thebe, which jupyter-book always loads and which fails without a kernel, and
    attributes that tell a screen reader what is not so."""
    for kind in ("script_files", "css_files"):
        if kind in context:
            context[kind] = [file for file in context[kind] if not _is_thebe(file)]
    if "body" in context:
        for attribute in UNTRUE:
            context["body"] = context["body"].replace(attribute, "")


def _is_thebe(file: Any) -> bool:
    return "thebe" in f"{file} {getattr(file, 'attributes', '')}".lower()


def setup(app: Sphinx) -> dict[str, bool]:
    app.config.templates_path.append(str(Path(__file__).parent / "templates"))
    app.connect("html-page-context", tidy_page, priority=900)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
