"""Methods are found by their name, or as module:Class."""

import pytest

from smoothtune import R3F
from smoothtune.methods.find import find_method


@pytest.mark.parametrize("name", ["r3f", "smoothtune.methods.r3f:R3F"])
def test_by_name_or_by_place(name):
    assert find_method(name) is R3F


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("r3g", "no installed package offers it as an entry point of smoothtune.methods"),
        ("json:JSONDecoder", "is <class 'json.decoder.JSONDecoder'>, not a class of methods"),
        ("json:loads", "is <function loads at .*>, not a class of methods"),
        ("json:Loads", "cannot be imported: AttributeError: module 'json' has no attribute"),
        ("jason_:loads", "no module 'jason_' is installed"),
        ("smoothtune.core.regularizer:Penalty", 'needs @method\\("its_name"\\) above it'),
    ],
)
def test_what_is_no_method_is_told(name, message):
    with pytest.raises(ValueError, match=message):
        find_method(name)
