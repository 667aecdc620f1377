"""Formulas as MathML, which a browser shows without a script or a network."""

import re

from latex2mathml.converter import convert

LONGEST = 2_000  # characters
NAMES = ("math|mfrac|mi|mn|mo|mover|mpadded|mroot|mrow|mspace|msqrt|mstyle|msub|msubsup|msup|"
         "mtable|mtd|mtext|mtr|munder|munderover")  # fmt: skip
ATTRIBUTES = ("accent|columnalign|columnspacing|depth|display|displaystyle|fence|form|height|"
              "linethickness|mathvariant|maxsize|minsize|movablelimits|rowspacing|scriptlevel|"
              "lspace|rspace|separator|stretchy|symmetric|width|xmlns")  # fmt: skip
# The converter escapes nothing, and passes on links and styles that a formula asks for.
HARMLESS = re.compile(rf'</?(?:{NAMES})(?: (?:{ATTRIBUTES})="[\w .:/%-]*")* ?/?>|[^<>\\]+')


def mathml(tex: str, display: bool = False) -> str | None:
    """Return a formula as an element `math`, or None where it is not known how, or long."""
    if len(tex) > LONGEST:
        return None
    try:
        made: str = convert(tex, display="block" if display else "inline")
    except Exception:  # the converter's ways to say that it is no formula are many
        return None
    return made if not HARMLESS.sub("", made) else None
