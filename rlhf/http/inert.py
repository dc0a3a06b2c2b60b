"""Escapes control characters in untrusted text: models, servers and environments may write terminal commands.

Applied only where text is displayed or written to a log; training and metrics use the original text.
"""

from __future__ import annotations

import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 without tab and newline, DEL, C1: among them ESC and CSI, which start terminal commands."""
_ORDERING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Bidirectional marks: they make the text after them appear in another order."""
_LINES = "\u2028\u2029\ufeff"
"""Line separators that only some readers treat as such, and the byte order mark."""
_HALVES = "\ud800-\udfff"
"""Surrogates, which no encoding can represent."""
_TAGS = "\U000e0000-\U000e007f"
"""Tag characters, which are never displayed."""
_OBEYED = re.compile(f"[{_CONTROLS}{_ORDERING}{_LINES}{_HALVES}{_TAGS}]")
_HARMLESS = re.compile(r"[\t\n -~]*")
_HALF = re.compile(f"[{_HALVES}]")


def inert(text: str) -> str:
    """The text with `\\x1b` for an escape and so on; newlines and tabs stay."""
    return text if _HARMLESS.fullmatch(text) else _OBEYED.sub(lambda found: _escaped(found[0]), text)


def inert_line(text: str) -> str:
    """The same, joined into one line."""
    return " ".join(inert(text).split())


def inert_json(text: str) -> str:
    """JSON text with characters that terminals and editors interpret written as JSON escapes; a reader gets the same
    values. A lone surrogate is kept. JSON encoders escape C0 themselves."""
    return text if text.isascii() and "\x7f" not in text else _OBEYED.sub(lambda found: _json_escaped(found[0]), text)


def whole(text: str) -> str:
    """The text with U+FFFD for every lone surrogate, so that it can be encoded."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escaped(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    above = code - 0x10000
    return f"\\u{0xD800 + (above >> 10):04x}\\u{0xDC00 + (above & 0x3FF):04x}"
