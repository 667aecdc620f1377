"""The directive `{api} module ...`: the public parts of modules, from their docstrings."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# A line that begins with an argument's name, or with what comes out.
NAMED = re.compile(r"^[\w`*., ]{1,50}: \S|^(Returns|Raises|Sources?)\b")


def public(module: ModuleType) -> list[tuple[str, Any]]:
    """What a module offers, in the order of its source: `__all__`, or what it defines."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    members = [(name, getattr(module, name)) for name in names]
    return [
        (name, member)
        for name, member in members
        if (inspect.isclass(member) or inspect.isroutine(member))
        and (hasattr(module, "__all__") or member.__module__ == module.__name__)
    ]


def signature(name: str, member: Any) -> str:
    """A call without types, which the docstring gives with more detail: `step(q, k, state)`."""
    if inspect.isclass(member) and issubclass(member, Exception):
        return name
    try:
        found = inspect.signature(member)
    except (TypeError, ValueError):  # a property, or a part of C
        return name
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    plain = [p for p in plain if p.name not in ("self", "cls")]
    return f"{name}{found.replace(parameters=plain, return_annotation=found.empty)}"


def inline(text: str) -> list[nodes.Node]:
    """Words, with what stands in `backticks` as code."""
    parts = re.split(r"`+([^`]+)`+", text)
    kinds = [nodes.literal if i % 2 else nodes.Text for i in range(len(parts))]
    return [
        kind("", part) if kind is nodes.literal else kind(part)
        for kind, part in zip(kinds, parts, strict=True)
        if part
    ]


def words(docstring: str | None) -> list[nodes.Node]:
    """A docstring as paragraphs; a line that begins with a name stays one, code stays code."""
    found: list[nodes.Node] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring or "")):
        if block.startswith("    "):
            found.append(nodes.literal_block(block, inspect.cleandoc(block), language="python"))
        elif block.strip():
            lines = [""]
            for line in block.splitlines():
                if NAMED.match(line):
                    lines.append(line.strip())
                else:
                    lines[-1] = f"{lines[-1]} {line.strip()}".strip()
            found += [nodes.paragraph("", "", *inline(line)) for line in lines if line]
    return found


class Api(SphinxDirective):
    """One section a module: what it is for, then each public part with its signature."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        return [self.section(import_module(name)) for name in self.arguments[0].split()]

    def section(self, module: ModuleType) -> nodes.section:
        self.env.note_dependency(str(module.__file__))
        section = nodes.section("", ids=[nodes.make_id(module.__name__)])
        section += nodes.title("", module.__name__.removeprefix("llmcourse."))
        section += words(module.__doc__)
        listing = nodes.definition_list(classes=["api"])
        for name, member in public(module):
            listing += self.entry(f"{module.__name__}.{name}", name, member)
        if len(listing):
            section += listing
        return section

    def entry(self, path: str, name: str, member: Any) -> nodes.definition_list_item:
        term = nodes.term("", "", nodes.literal("", signature(name, member)))
        term["ids"].append(nodes.make_id(path))
        body = nodes.definition("", *words(member.__doc__))
        methods = self.methods(path, member) if inspect.isclass(member) else []
        if methods:
            body += nodes.definition_list("", *methods)
        return nodes.definition_list_item("", term, body)

    def methods(self, path: str, owner: type) -> list[nodes.definition_list_item]:
        own = [
            (name, getattr(value, "__func__", value))
            for name, value in vars(owner).items()
            if name[0] != "_" and getattr(value, "__doc__", None)
        ]
        return [
            self.entry(f"{path}.{name}", name, value)
            for name, value in own
            if inspect.isroutine(value) or isinstance(value, property)
        ]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("api", Api)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
