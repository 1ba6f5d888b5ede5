"""Figures: one look for a method everywhere, facets, chance lines, and their place in pages."""

import re
from itertools import combinations, pairwise

import pytest

from smoothtune.report.curves import Curve, CurvePoint
from smoothtune.report.page import Plot, Section, Table, page_text
from smoothtune.report.plots import Frame, draw, draw_lines, drawn, log_scale, num_lines, styles

NAMES = [f"method {number}" for number in range(28)]


def curve(height: float = 0.9) -> Curve:
    points = [CurvePoint(x, height - 0.1 * x, height - 0.12 * x, height) for x in range(4)]
    return Curve("score", "noise", "accuracy (0 to 1)", {"line": points})


def test_any_two_of_many_methods_differ_in_more_than_color() -> None:
    for one, other in combinations(styles(NAMES).values(), 2):
        assert sum(a != b for a, b in zip(one, other, strict=True)) >= 2
        assert (one.marker, one.dashes) != (other.marker, other.dashes) or one.color != other.color


def test_long_names_are_told_apart_by_their_ends() -> None:
    pytest.importorskip("matplotlib")
    first, second, third = (f"{'folder/' * 10}{number}" for number in (1, 2, 3))
    one, other = (draw({first: curve(), name: curve(0.5)}) for name in (second, third))
    assert one != other


def test_a_method_looks_the_same_whatever_stands_beside_it() -> None:
    looks = styles(NAMES[:15])
    pytest.importorskip("matplotlib")
    alone = draw({NAMES[9]: curve(), NAMES[2]: curve(0.5)}, Frame(looks))
    for name in (NAMES[9], NAMES[2]):
        assert looks[name].color.lower() in alone
    assert looks[NAMES[0]].color.lower() not in alone


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1.0, 4.9], None),  # too narrow
        ([0.0, -1.0], None),
        ([1.0, 20.0, 0.0], {1, 2, 5, 10, 20}),
        ([1e-3, 1e2], {1e-3, 1e-2, 1e-1, 1, 10, 100}),
    ],
)
def test_logarithmic_axes_have_ticks_to_read(values, ticks) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.plot(range(len(values)), values)
    log_scale(axes, values)
    assert axes.get_yscale() == ("linear" if ticks is None else "log")
    if ticks is not None:
        low, high = min(v for v in values if v > 0), max(values)
        found = {round(float(tick), 6) for tick in axes.get_yticks() if low <= tick <= high}
        assert found == ticks
        axes.figure.canvas.draw()
        labels = [text.get_text() for text in axes.yaxis.get_majorticklabels()]
        assert "10" in labels


@pytest.mark.parametrize(("count", "axes"), [(7, 1), (8, 7), (15, 14)])
def test_more_than_seven_lines_get_a_facet_each(count: int, axes: int) -> None:
    pytest.importorskip("matplotlib")
    curves = {name: curve() for name in NAMES[:count]}
    assert num_lines(curves) == count
    assert len(re.findall(r'id="axes_\d+"', draw(curves))) == axes


def test_chance_is_a_line_that_is_named() -> None:
    pytest.importorskip("matplotlib")
    shared = {"styles": styles(["a"]), "y_limits": (0.0, 1.0)}
    without, with_chance = (
        draw({"a": curve()}, Frame(**shared, chance=chance)) for chance in (None, 0.5)
    )
    assert "best constant answer" in with_chance
    assert "best constant answer" not in without


def test_other_formats() -> None:
    pytest.importorskip("matplotlib")
    files = draw_lines({"a": curve()}, formats=("svg", "pdf", "png"))
    assert files["svg"].startswith(b"<?xml")
    assert files["pdf"].startswith(b"%PDF")
    assert files["png"].startswith(b"\x89PNG")


def test_a_legend_stands_below_the_axes() -> None:
    pytest.importorskip("matplotlib")
    figures = []

    def paint(figure) -> None:
        figures.append(figure)
        figure.subplots().plot([0, 1], label="a line")
        figure.legend(loc="outside lower center")

    drawn(4, 3, paint)
    (axes,), (legend,) = figures[0].axes, figures[0].legends
    assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0


def test_plots_of_a_page_share_no_id_and_follow_its_colors() -> None:
    pytest.importorskip("matplotlib")
    svg = draw({"a": curve(), "b": curve()})
    inline = [
        str(Plot(name, "<title>", "", {"svg": svg.encode()}).inline) for name in ("one", "two")
    ]
    ids = [set(re.findall(r' id="([^"]*)"', text)) for text in inline]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, own in zip(inline, ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([^")]*)', text)) <= own
        assert 'role="img" aria-label="&lt;title&gt;"' in text
        assert "#000000" not in text
        assert "#ffffff" not in text


def test_pages_of_several_sections_have_contents() -> None:
    table = Table(["a"], [])
    titles = ["Fresh runs", "Trials: <b>", "How it was made"]
    page = page_text("html", "title", [Section(title, [table]) for title in titles])
    links = re.findall(r'<a href="#([^"]*)">(.*?)</a>', page)
    assert links == re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', page)
    assert ("section-2", "Trials: &lt;b&gt;") in links
    assert all(one[0] != other[0] for one, other in pairwise(links))
