"""The pictures of methods say what the methods declare."""

import xml.etree.ElementTree as ET

import pytest
import schematic

from smoothtune.core.regularizer import Regularizer, TaskLoss
from smoothtune.methods import METHODS

POINTS = {"word": "word", "normalized": "normalized", "block 0": 0, "every block": 0}


@pytest.mark.parametrize("name", schematic.FACTS)
def test_facts_are_those_that_the_method_declares(name):
    facts, cls = schematic.FACTS[name], METHODS[name]
    method = cls()
    entered = {POINTS[each.enters] for each in facts.passes if each.enters in POINTS}
    assert entered | ({"word"} if facts.derives else set()) == set(method.points())
    assert ("hidden states" in (facts.compares, facts.derives)) == cls.declared.hidden_states
    if cls.declared.small_difference:
        assert facts.compares
    if issubclass(cls, TaskLoss):  # the loss is not that of one clean pass
        clean = facts.passes == (schematic.CLEAN,)
        assert not clean or facts.weights
    traits = method.traits
    on_weights = traits.reparametrizes or traits.resets_weights or traits.ascends_weights
    if on_weights or cls.before_step is not Regularizer.before_step:
        assert facts.weights
    if traits.derivative_order > 1 or traits.finite_differences:
        assert facts.derives


@pytest.mark.parametrize("name", schematic.FACTS)
def test_picture_is_an_svg_with_its_words(name):
    root = ET.fromstring(schematic.draw(name))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert root.attrib["aria-label"] == schematic.described(name)
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(text.attrib["x"]) < width
        assert 0 < float(text.attrib["y"]) < height


def test_what_enters_is_drawn_below_the_pass_it_enters():
    drawn = schematic.draw("lnsr")
    assert drawn.count('class="box"') == 11  # two passes, the second one without a loss
    assert drawn.count('class="cmp" marker') == 2  # after each of the blocks
    assert drawn.count('class="in" marker') == 1
