"""A result tells its numbers, and shows itself in a notebook."""

from dataclasses import replace

from lab_results import as_result
from qkv.lab import EXPERIMENTS, Measured, Number, Words

EXPERIMENT = EXPERIMENTS[0]


def test_a_result_shows_its_numbers_in_a_notebook():
    numbers = {"ratio": Number(7.0, 6.5, 7.5), "once": 0.125, "a<b": 1.0}
    html = as_result(EXPERIMENT, EXPERIMENT.quick, Measured(numbers))._repr_html_()
    assert html.startswith("<table><caption>") and html.endswith("</table>")
    assert "<tr><td>ratio</td><td>7</td><td>6.5 – 7.5</td></tr>" in html
    assert "<tr><td>once</td><td>0.125</td><td></td></tr>" in html
    assert "<td>a&lt;b</td>" in html and f"{EXPERIMENT.id} quick, seed 0" in html


def test_why_nothing_was_measured_is_said_as_text():
    result = as_result(EXPERIMENT, EXPERIMENT.quick, Measured({}))
    html = replace(result, reason=Words("no <gpu>", ""))._repr_html_()
    assert html.endswith("<p>no &lt;gpu&gt;</p>")
