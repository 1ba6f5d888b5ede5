"""A picture of what a method does in one update, drawn as SVG from a few facts about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Literal

Place = Literal["word", "normalized", "block 0", "every block", "dropout"]
Compared = Literal["hidden states", "predictions"]
Derived = Literal["hidden states", "predictions", "loss"]

PARTS = ("word embeddings", "position, norm", "block 1", "block L", "head", "loss")
WEIGHTS = PARTS[:5]
BLOCKS = ("block 1", "block L")
WIDTH, HEIGHT, STEP, LEFT = 92, 40, 118, 12
"""Of a box, from one box to the next, and of the margin, in pixels."""


@dataclass(frozen=True)
class Pass:
    """One way through the model."""

    enters: Place | None = None
    """Where something is added, or "dropout" if only the masks differ."""
    what: str = ""
    """What is added there."""
    name: str = "clean pass"
    has_loss: bool = False
    """Whether the task loss is taken at its end."""


@dataclass(frozen=True)
class Facts:
    """What a picture shows of a method."""

    passes: tuple[Pass, ...] = (Pass(has_loss=True),)
    compares: Compared | None = None
    distance: str = ""
    """What is measured between the two passes."""
    derives: Derived | None = None
    """What is differentiated in the embeddings."""
    derivative: str = ""
    weights: dict[str, str] = field(default_factory=dict)
    """Parts whose weights, or their updates, are changed, with what happens to them."""


CLEAN = Pass(has_loss=True)


def _worst(place: Place = "word", *, loss: bool = False, what: str = "worst \u03b4") -> Pass:
    return Pass(place, what, "perturbed pass", has_loss=loss)


def _noisy(place: Place, *, loss: bool = False) -> Pass:
    return Pass(place, "noise", "noisy pass", has_loss=loss)


_KL = Facts((CLEAN, _worst()), "predictions", "divergence")

FACTS: dict[str, Facts] = {
    "alice": Facts((CLEAN, _worst(loss=True)), "predictions", "divergence"),
    "alum": _KL,
    "child_tuning": Facts(weights=dict.fromkeys(WEIGHTS, "a part moves")),
    "cross_holder": Facts(derives="predictions", derivative="first and second derivative"),
    "cwgnc": Facts(weights=dict.fromkeys(WEIGHTS, "gradient clipped")),
    "double_backprop": Facts(derives="loss", derivative="first derivative"),
    "fgm": Facts((CLEAN, _worst(loss=True, what="step up the loss"))),
    "freelb": Facts((Pass("word", "K steps up the loss", "K passes", has_loss=True),)),
    "hype": Facts((_noisy("every block", loss=True),)),
    "jachess": Facts(derives="hidden states", derivative="first and second derivative"),
    "jacobian": Facts(derives="predictions", derivative="first derivative"),
    "l2_sp": Facts(weights=dict.fromkeys(WEIGHTS[:4], "pulled to start") | {"head": "pulled to 0"}),
    "label_smoothing": Facts(weights={"loss": "softened labels"}),
    "llrd": Facts(
        weights={
            "word embeddings": "slowest",
            "position, norm": "slowest",
            "block 1": "slow",
            "block L": "faster",
            "head": "full rate",
        }
    ),
    "lnsr": Facts((CLEAN, _noisy("block 0")), "hidden states", "distance"),
    "mixout": Facts(weights=dict.fromkeys(BLOCKS, "mixed with start")),
    "neftune": Facts((_noisy("word", loss=True),)),
    "noise": Facts((_noisy("block 0", loss=True),)),
    "pgd": Facts((_worst(loss=True),)),
    "plain": Facts(),
    "r3f": Facts((CLEAN, _noisy("word")), "predictions", "divergence"),
    "r4f": Facts(
        (CLEAN, _noisy("word")), "predictions", "divergence", weights={"head": "Lipschitz-1"}
    ),
    "r_drop": Facts(
        (CLEAN, Pass("dropout", "other dropout", "second pass", has_loss=True)),
        "predictions",
        "divergence",
    ),
    "reinit": Facts(weights={"block L": "random again"}),
    "sam": Facts(weights=dict.fromkeys(WEIGHTS, "w + e")),
    "sift": Facts((CLEAN, _worst("normalized")), "predictions", "divergence"),
    "smart": _KL,
    "uegr": Facts(
        tuple(
            Pass("word", "\u03b4 up the loss", f"sub-model {k}, its own dropout", has_loss=True)
            for k in (1, 2)
        ),
        "predictions",
        "divergence",
        weights=dict.fromkeys(WEIGHTS, "a part moves"),
    ),
    "vat": _KL,
}

STYLE = """
.schematic{--ink:#3a3a3a;--paper:#fff;--box:#f3f4f6;--in:#b45309;--cmp:#1d4ed8;--der:#15803d;--wt:#7e22ce}
@media (prefers-color-scheme:dark){.schematic{--ink:#e2e4e9;--paper:#1e2129;--box:#2e323d;--in:#fbbf24;--cmp:#93c5fd;--der:#86efac;--wt:#d8b4fe}}
.schematic text{font:12px system-ui,sans-serif;fill:var(--ink);text-anchor:middle}.schematic text.name{text-anchor:start;font-weight:600}
.schematic .box{fill:var(--box);stroke:var(--ink)}.schematic .flow{stroke:var(--ink);fill:none}
.schematic .wt{stroke:var(--wt);stroke-width:3}.schematic text.wt{fill:var(--wt);stroke:none}
.schematic .in{stroke:var(--in);stroke-width:2;fill:none}.schematic text.in{fill:var(--in);stroke:none}
.schematic .cmp{stroke:var(--cmp);stroke-width:2;stroke-dasharray:5 3;fill:none}.schematic text.cmp{fill:var(--cmp);stroke:none}
.schematic .der{stroke:var(--der);stroke-width:2;stroke-dasharray:1 4;stroke-linecap:round;fill:none}.schematic text.der{fill:var(--der);stroke:none}
"""  # noqa: E501


def described(name: str) -> str:
    """The picture in words."""
    facts = FACTS[name]
    said = [
        f"{each.name}: {each.what} at {_where(each.enters)}" for each in facts.passes if each.enters
    ]
    if facts.compares:
        said.append(f"compared: {facts.compares} of the two passes")
    if facts.derives:
        said.append(f"{facts.derivative} of the {facts.derives} in the word embeddings")
    if facts.weights:
        parts = ", ".join(dict.fromkeys(facts.weights.values()))
        said.append(f"{'targets' if 'loss' in facts.weights else 'weights'}: {parts}")
    return "; ".join(said) or "one pass, the task loss, nothing else"


def _where(place: Place) -> str:
    names = {"word": "the word embeddings", "normalized": "the normalized embeddings"}
    names |= {"block 0": "the input of the first block", "dropout": "every layer"}
    return names.get(place, f"the input of {place}")


def draw(name: str) -> str:
    """The picture as an SVG document."""
    facts = FACTS[name]
    top = 62 if facts.derives else 26
    top += 18 * bool(facts.weights and facts.compares)
    gap = 104
    rows = [top + gap * i for i in range(len(facts.passes))]
    both = bool(facts.weights and facts.compares)
    parts = []
    for y, each in zip(rows, facts.passes, strict=True):
        parts += _pass(y, each, name_above=24 if both and y == top else 8)
    parts += _weights(rows[0], facts, note=-8 if both else HEIGHT + 18)
    if facts.compares:
        parts += _compared(rows[0], rows[1], facts)
    if facts.derives:
        parts += _derivative(top, facts)
    height, width = rows[-1] + HEIGHT + 46, LEFT * 2 + STEP * (len(PARTS) - 1) + WIDTH
    text = escape(described(name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="schematic" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{text}">\n<style>{STYLE}</style>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" '
        'fill="context-stroke"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="6" fill="var(--paper)"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _x(part: str) -> int:
    return LEFT + STEP * PARTS.index(part)


def _pass(y: int, each: Pass, name_above: int) -> list[str]:
    """The boxes of one pass, what connects them, and what enters."""
    shown = [part for part in PARTS if part != "loss" or each.has_loss]
    drawn = [_box(part, y) for part in shown]
    middle = y + HEIGHT // 2
    drawn += [
        f'<path class="flow" marker-end="url(#tip)" d="M{_x(part) - STEP + WIDTH} {middle}'
        f'H{_x(part) - 1}"/>'
        for part in shown[1:]
    ]
    dots = (_x("block L") + _x("block 1") + WIDTH) // 2
    drawn.append(_text(dots, middle - 8, "\u2026", ""))
    drawn.append(f'<text class="name" x="{LEFT}" y="{y - name_above}">{escape(each.name)}</text>')
    inside = each.enters in ("normalized", "dropout")
    tip = y + HEIGHT + 2 if inside else middle + 3
    below = y + HEIGHT + 34
    for x in _entries(each.enters):
        drawn.append(f'<path class="in" marker-end="url(#tip)" d="M{x} {below - 14}V{tip}"/>')
    if each.enters:
        places = _entries(each.enters)
        drawn.append(_text(sum(places) // len(places), below, each.what, "in"))
    return drawn


def _entries(place: Place | None) -> list[int]:
    """Where arrows enter a pass, in pixels from the left."""
    between = (STEP - WIDTH) // 2
    blocks = [_x("block 1") - between, _x("block L") - between]
    return {
        None: [],
        "word": [_x("position, norm") - between],
        "normalized": [_x("position, norm") + WIDTH // 2],
        "block 0": blocks[:1],
        "every block": blocks,
        "dropout": [_x(part) + WIDTH // 2 for part in BLOCKS],
    }[place]


def _box(part: str, y: int) -> str:
    rect = f'<rect class="box" x="{_x(part)}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
    words = part.split(" ") if part in PARTS[:2] else [part]
    middle, start = _x(part) + WIDTH // 2, y + HEIGHT // 2 + 4 - 7 * (len(words) - 1)
    return rect + "".join(_text(middle, start + 14 * i, w, "") for i, w in enumerate(words))


def _text(x: int, y: int, words: str, css: str) -> str:
    return f'<text class="{css}" x="{x}" y="{y}">{escape(words)}</text>'


def _weights(y: int, facts: Facts, note: int) -> list[str]:
    drawn = []
    for part, words in facts.weights.items():
        x = _x(part)
        size = f'width="{WIDTH}" height="{HEIGHT}" rx="5"'
        drawn.append(f'<rect class="wt" fill="none" x="{x}" y="{y}" {size}/>')
        drawn.append(_text(x + WIDTH // 2, y + note, words, "wt"))
    return drawn


def _compared(first: int, second: int, facts: Facts) -> list[str]:
    """Lines between two passes where their outcomes are compared."""
    after = BLOCKS if facts.compares == "hidden states" else ("head",)
    middle = (first + HEIGHT + second) // 2
    drawn = []
    for part in after:
        x = _x(part) + WIDTH - 14
        ends = f"M{x} {first + HEIGHT + 2}V{second - 2}"
        tips = 'marker-start="url(#tip)" marker-end="url(#tip)"'
        drawn.append(f'<path class="cmp" {tips} d="{ends}"/>')
        drawn.append(_text(x - 54, middle + 4, facts.distance, "cmp"))
    return drawn


def _derivative(y: int, facts: Facts) -> list[str]:
    """Arcs from what is differentiated back to the word embeddings."""
    parts: tuple[str, ...] = {"hidden states": BLOCKS, "predictions": ("head",), "loss": ("loss",)}[
        facts.derives or "loss"
    ]
    end = _x("word embeddings") + WIDTH
    drawn = []
    for part in parts:
        x = _x(part) + WIDTH - 14
        arc = f"M{x} {y - 2}C{x} {y - 34},{end} {y - 34},{end} {y - 3}"
        drawn.append(f'<path class="der" marker-end="url(#tip)" d="{arc}"/>')
    middle = (_x(parts[-1]) + WIDTH - 14 + end) // 2
    return [*drawn, _text(middle, y - 36, facts.derivative, "der")]
