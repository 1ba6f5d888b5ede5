"""Characters that are not seen, by which texts differ that look alike."""

import unicodedata

_IGNORED = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
"""Fillers, joiners and the blank of Braille, which are no format characters in Unicode."""


def _is_unseen(character: str) -> bool:
    if character.isspace():
        return False
    selects = "\ufe00" <= character <= "\ufe0f" or "\u180b" <= character <= "\u180f"
    return selects or character in _IGNORED or unicodedata.category(character) in ("Cc", "Cf")


def visible(text: str) -> str:
    """A text without blanks around it and without characters that are not printed."""
    if text.isascii() and text.isprintable():
        return text.strip()
    return "".join(each for each in text if not _is_unseen(each)).strip()


def spelled_alike(text: str) -> str:
    r"""What texts have in common that differ in blanks, case, Unicode's form or unseen characters.

    >>> spelled_alike("Very  Good") == spelled_alike("very good\u200b")
    True
    """
    return " ".join(visible(unicodedata.normalize("NFKC", text)).casefold().split())
