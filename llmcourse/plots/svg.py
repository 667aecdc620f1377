"""matplotlib figure -> an SVG element that lives inside a page and takes on its colours."""

import io
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.figure import Figure

SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
INK, PAPER = "currentColor", "var(--pst-color-background, Canvas)"
NOT_IN_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
ET.register_namespace("", SVG[1:-1])


def from_figure(fig: Figure, name: str) -> ET.Element:
    """The figure as one <svg>: text stays text, ids begin with `name`, always the same."""
    out = io.BytesIO()
    nothing = dict.fromkeys(["Date", "Creator", "Format", "Type"])
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        fig.savefig(out, format="svg", metadata=nothing)
    root = ET.fromstring(NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", out.getvalue().decode()))
    for style in root.findall(f"{SVG}defs[{SVG}style]") + root.findall(f"{SVG}metadata"):
        root.remove(style)  # its `*` rule would reach the whole page
    used = set(_references(root))
    for element in root.iter():
        _clean(element, name, used)
    width, height = (
        float(root.attrib[side].removesuffix("pt")) for side in ("width", "height")
    )
    root.attrib.clear()
    root.set("viewBox", f"0 0 {width:g} {height:g}")
    root.set("style", f"width:100%;max-width:{width * 4 / 3:.0f}px;height:auto")
    root.set("stroke-linejoin", "round")
    root.set("fill", INK)  # matplotlib leaves black fills unsaid
    root.set("font-family", "system-ui, sans-serif")
    return root


def text(element: ET.Element) -> str:
    """The element as HTML can hold it."""
    ET.indent(element, "")
    return ET.tostring(element, encoding="unicode", short_empty_elements=True)


def merge(frames: list[ET.Element], first: int = 0) -> ET.Element:
    """One <svg> out of many: what all frames share once, the rest in <g data-f="0 3 4">.

    Groups that do not belong to frame number `first` are hidden.
    """
    head = frames[0]
    defs = ET.Element(f"{SVG}defs")
    for frame in frames:
        _collect(frame, defs)
    root = ET.Element(head.tag, head.attrib)
    root.append(defs)
    root.extend(_merged([list(frame) for frame in frames], first))
    return root


def _references(root: ET.Element) -> Iterator[str]:
    for element in root.iter():
        for value in element.attrib.values():
            yield from re.findall(r"^#([\w.-]+)$", value)
            yield from re.findall(r"url\(#([\w.-]+)\)", value)


def _clean(element: ET.Element, name: str, used: set[str]) -> None:
    attributes = element.attrib
    if HREF in attributes:
        attributes["href"] = attributes.pop(HREF).replace("\n", "")
    if attributes.get("id") not in used:
        attributes.pop("id", None)
    for key, value in attributes.items():
        if key == "id":
            attributes[key] = f"{name}-{value}"
        elif key == "style":
            attributes[key] = _style(value)
        elif key == "d":
            attributes[key] = re.sub(r"\s+", " ", _short(value)).strip()
        elif key == "transform":
            attributes[key] = _short(value)
        if value.startswith("#"):
            attributes[key] = f"#{name}-{value[1:]}"
        elif "url(#" in value:
            attributes[key] = attributes[key].replace("url(#", f"url(#{name}-")
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]


def _short(numbers: str) -> str:
    """Two decimals: a hundredth of a point is far below a pixel."""
    return re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", numbers)


def _style(style: str) -> str:
    mono = "Mono" in style.split("'DejaVu Sans'")[0]
    style = re.sub(r"font-family: [^;]*;?", "font-family: monospace;" if mono else "", style)
    style = style.replace("#000000", INK).replace("#ffffff", PAPER)
    # The page raises --plot-text on a small screen, where the whole figure shrinks.
    style = re.sub(r"font-size: ([\d.]+)px", r"font-size: calc(\1px*var(--plot-text,1))", style)
    return re.sub(r"\s*([;:])\s*", r"\1", style).strip(";")


def _collect(element: ET.Element, defs: ET.Element) -> None:
    """Move every <defs> below `element` into `defs`; ids are hashes, so equal is the same."""
    known = {child.get("id") for child in defs}
    for parent in list(element.iter()):
        for child in parent.findall(f"{SVG}defs"):
            parent.remove(child)
            for item in child:
                if item.get("id") not in known:
                    known.add(item.get("id"))
                    defs.append(item)


def _merged(frames: list[list[ET.Element]], first: int) -> list[ET.Element]:
    """Children of one element, a list for each frame -> children that hold all frames."""
    texts = [[ET.tostring(node) for node in nodes] for nodes in frames]
    if all(row == texts[0] for row in texts):
        return frames[0]
    if all(map(_alike, zip(*frames, strict=False))) and len({len(row) for row in frames}) == 1:
        out = []
        for place, nodes in enumerate(zip(*frames, strict=True)):
            if len({row[place] for row in texts}) == 1:
                out.append(nodes[0])
            elif nodes[0].tag == f"{SVG}g":
                group = ET.Element(nodes[0].tag, nodes[0].attrib)
                group.extend(_merged([list(node) for node in nodes], first))
                out.append(group)
            else:
                out += _variants([[node] for node in nodes], first)
        return out
    return _variants(frames, first)


def _alike(nodes: tuple[ET.Element, ...]) -> bool:
    return all(
        node.tag == nodes[0].tag and (node.tag != f"{SVG}g" or node.attrib == nodes[0].attrib)
        for node in nodes
    )


def _variants(frames: list[list[ET.Element]], first: int) -> list[ET.Element]:
    groups: dict[bytes, ET.Element] = {}
    for number, nodes in enumerate(frames):
        key = b"".join(map(ET.tostring, nodes))
        if key in groups:
            groups[key].set("data-f", f"{groups[key].get('data-f')} {number}")
        elif nodes:
            groups[key] = ET.Element(f"{SVG}g", {"data-f": str(number)})
            groups[key].extend(nodes)
    for group in groups.values():
        if str(first) not in group.get("data-f", "").split():
            group.set("display", "none")
    return list(groups.values())
