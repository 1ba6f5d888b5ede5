"""What is said about a method comes from its file."""

import pytest

from smoothtune.methods import METHODS
from smoothtune.methods.describe import describe
from smoothtune.methods.equation import latex, plain


def test_parts_of_a_docstring():
    found = describe("mixout")
    assert found.name == "mixout"
    assert found.title == "Mixout: dropout towards the pre-trained weights"
    assert found.summary == "Weights are swapped at random for their pre-trained values."
    assert found.reference.splitlines() == [
        "Lee, Cho, Kang: Mixout: Effective Regularization to Finetune Large-scale Pretrained",
        "Language Models, ICLR 2020 (arXiv 1909.11299). Code: bloodwass/mixout.",
    ]
    assert found.equation.splitlines()[0] == "in every training forward each linear layer uses"
    assert found.equation.splitlines()[1].startswith("W~ = ((1 - M) o W_0 + M o W - p W_0)/(1 - p)")
    assert found.latex.splitlines()[1].startswith(r"$$\tilde{W} = \frac{(1 - M) \odot W_0")
    assert found.departures.splitlines()[0].startswith("* The mask is drawn once per input neuron")
    assert found.departures.splitlines()[1].startswith("  paper's figure;")  # of the same item
    assert describe("plain").departures == "none."
    assert found.fields[0].name == "p"


def test_fields():
    fields = {field.name: field for field in describe("mixout").fields}
    assert {name: field.default for name, field in fields.items()} == {
        "p": 0.3,
        "mask": "input",
        "head": False,
        "compat": None,
    }
    assert fields["mask"].description == "One draw per input neuron (released code) or per weight."


def test_fields_of_every_penalty_come_first():
    fields = {field.name: field for field in describe("l2_sp").fields}
    assert list(fields) == [
        "weight",
        "share",
        "max_share",
        "every",
        "rows",
        "batches",
        "ramp_start",
        "ramp_steps",
        "side",
        "alpha",
        "beta",
    ]
    assert [field.default for field in fields.values()][:6] == [1.0, None, None, 1, 1.0, "both"]
    assert fields["weight"].description == (
        "Factor of the loss term, in place of share; 0 turns the method off."
    )


@pytest.mark.parametrize(
    ("name", "field", "expected"),
    [
        ("mixout", "p", "number >= 0, <= 1"),
        ("mixout", "head", "boolean"),
        ("mixout", "compat", "'official' | null"),
        ("l2_sp", "every", "integer > 0"),
        ("child_tuning", "keep", "number > 0, <= 1"),
        ("label_smoothing", "smoothing", "number >= 0, < 1"),
        ("lnsr", "layer", "'word' | integer >= 0 | null"),
        ("lnsr", "layer_weights", "list of number >= 0 | null"),
        ("jachess", "power", "1 | 2"),
        ("uegr", "dropout_range", "list of number >= 0, < 1"),
        ("uegr", "modules", "list of 'hidden' | 'attention' | 'head' | null"),
    ],
)
def test_values_a_field_takes(name, field, expected):
    (found,) = (each.type for each in describe(name).fields if each.name == field)
    assert found == expected


def test_fields_of_a_base_come_last():
    names = [field.name for field in describe("smart").fields]
    assert names[:4] == ["weight", "share", "max_share", "every"]
    assert names.index("compat") < names.index("epsilon") < names.index("units")


@pytest.mark.parametrize("name", METHODS)
def test_equations_read_well_in_a_terminal(name):
    equation = describe(name).equation
    assert not set("$\\") & set(equation)
    assert all(len(line) <= 100 for line in equation.splitlines())


@pytest.mark.parametrize(
    ("math", "expected"),
    [
        (r"$\frac{1}{K} \sum_k a_k$", "1/K sum_k a_k"),
        (r"$\frac{a - b}{1 - p}$", "(a - b)/(1 - p)"),
        (r"$\frac{\partial^2 z_{l,i}}{\partial x^2}$", "d^2 z_{l,i}/dx^2"),
        (r"$\max_{\|\delta\| \le \epsilon} l(\tilde{w})$", "max_{||delta|| <= epsilon} l(w~)"),
        (r"$KL(p \,\|\, q), \quad x \gets step\_size$", "KL(p || q),   x <- step_size"),
        (r"a price of $5 and `{a}`", r"a price of $5 and `{a}`"),
    ],
)
def test_plain_text_of_mathematics(math, expected):
    assert plain(math) == expected


def test_names_of_several_letters_are_upright():
    found = latex(r"the share: $$total = init\_size \cdot R_{adv} \text{(eq. 4)}$$")
    expected = r"\mathrm{total} = \mathrm{init\_size} \cdot R_{\mathrm{adv}} \text{(eq. 4)}"
    assert found == f"the share: $${expected}$$"
