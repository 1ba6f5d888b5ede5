r"""Equations of methods: LaTeX in their docstrings, plain text in a terminal.

In the section *Equation* of a method's file `$$...$$` is set on lines of its own, `$...$` within
the text. Names of several letters stand as they are, as in `$$total = L(f(x), y) + R$$`.
"""

import re

MATH = re.compile(r"(\$\$?)(.+?)\1", re.DOTALL)
_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_SIGNS = {
    r"\|": "||",
    r"\{": "{",
    r"\}": "}",
    r"\_": "_",
    r"\le": "<=",
    r"\gets": "<-",
    r"\sim": "~",
    r"\cdot": "*",
    r"\odot": "o",
    r"\nabla": "grad",
    r"\partial": "d",
    r"\ldots": "..",
}
_NAME = re.compile(r"(\\text\{[^}]*\}|\\[A-Za-z]+)|(?<![A-Za-z])((?:[A-Za-z]|\\_){2,})")


def plain(text: str) -> str:
    r"""The text with its mathematics as one writes it on a keyboard.

    >>> plain(r"$$R = \frac{1}{K} \sum_{r=b}^{L} \lambda_r \|f(\tilde{x}) - y\|^2$$, $0 \le y$")
    'R = 1/K sum_{r=b}^L lambda_r ||f(x~) - y||^2, 0 <= y'
    """
    return MATH.sub(lambda match: _plain(match[2]), text)


def _plain(latex: str) -> str:
    text = re.sub(r"\\text" + _GROUP, r"\1", latex)
    text = re.sub(r"\\tilde" + _GROUP, r"\1~", text)
    text = re.sub(r"\\sqrt" + _GROUP, r"sqrt(\1)", text)
    text = re.sub(r"\\frac" + _GROUP * 2, lambda m: f"{_part(m[1])}/{_part(m[2])}", text)
    text = re.sub(r"(?<=[_^])\{(\w+)\}", r"\1", text)
    text = re.sub(r"\\partial (?=\w)", "d", re.sub(r" ?\\, ?", " ", text))
    text = re.sub(r"\\quad", " ", text)
    return re.sub(r"\\(?:[A-Za-z]+|.)", lambda m: _SIGNS.get(m[0], m[0][1:]), text)


def _part(text: str) -> str:
    """The part of a fraction, in brackets where it holds more than one factor."""
    return text if re.fullmatch(r"[^\s/]+|\\partial\S* \S+", text) else f"({text})"


def latex(text: str) -> str:
    r"""The text with names of several letters set upright, as Markdown and MathML take it.

    >>> latex(r"the weight: $total = weight \cdot R$")
    'the weight: $\\mathrm{total} = \\mathrm{weight} \\cdot R$'
    """
    return MATH.sub(lambda match: match[1] + _upright(match[2]) + match[1], text)


def _upright(math: str) -> str:
    return _NAME.sub(lambda m: m[1] or rf"\mathrm{{{m[2]}}}", math)
