"""Which picture belongs to which experiment, and a picture as SVG that can stand in a page."""

import io
import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qkv.errors import OptionError
from qkv.lab import Language, Result
from qkv.viz.caching import draw_caching
from qkv.viz.causality import draw_causality
from qkv.viz.codes import draw_codes
from qkv.viz.dropping import draw_dropping
from qkv.viz.heads import draw_heads
from qkv.viz.importance import draw_importance
from qkv.viz.quadratic import draw_quadratic
from qkv.viz.scaling import draw_scaling
from qkv.viz.utilisation import draw_utilisation
from qkv.viz.windows import draw_windows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[[Result, "Axes", Language], None]
"""Draws a result onto an axis, from its numbers and series alone."""

PICTURES: Mapping[str, Draw] = {
    "a": draw_scaling,
    "b": draw_causality,
    "c": draw_heads,
    "d": draw_caching,
    "e": draw_importance,
    "g": draw_quadratic,
    "h": draw_codes,
    "j": draw_windows,
    "k": draw_dropping,
    "l": draw_utilisation,
}
"""By the letters of the experiments."""

INCHES = (6.4, 4.0)

FONT = "DejaVu Sans"
"""Comes with matplotlib and tells how wide a text is; a page shows it in its own font."""


def draw(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw a result onto an axis.

    Parameters
    ----------
    result : Result
        Of an experiment that has a picture, with what it is drawn from.
    axes : matplotlib.axes.Axes
    language : "en" or "zh"
    """
    PICTURES[result.experiment](result, axes, language)


def has_picture(result: Result) -> bool:
    """Whether there is something to draw."""
    return result.experiment in PICTURES and bool(result.series)


def svg(result: Result, language: Language = "en") -> str:
    """Return a picture as an SVG element: its text is text, and its names are its own within a page.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("drawing needs the extra: pip install 'qkv[viz]'") from None
    written = io.StringIO()
    options: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": result.experiment,
        "font.sans-serif": [FONT],
    }
    with mpl.rc_context(options), warnings.catch_warnings():
        # Chinese glyphs are the reader's, not this machine's: only their width is guessed.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=INCHES, layout="constrained")
        draw(result, figure.add_subplot(), language)
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return _for_a_page(written.getvalue(), result.experiment)


def _for_a_page(document: str, prefix: str) -> str:
    """Return the svg element of a document, as wide as its place, with names that no other picture has."""
    element = document[document.index("<svg") :]
    element = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", element, count=1)
    element = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", element, count=1)
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r"font-family: [^;\"]*", "font-family: inherit", element)
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r'href="#', f'href="#{prefix}-', element)
    return re.sub(r"url\(#", f"url(#{prefix}-", element)
