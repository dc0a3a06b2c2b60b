"""Read and show text that others wrote: JSON within bounds, and no control characters in a terminal or a log.

Models, servers and environments may write terminal commands and JSON that breaks its reader. Escaping is applied only
where text is displayed or written to a log; training and metrics use the original text.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

DEPTH = 64
"""Largest nesting of objects and arrays. Some encoders end at 255, and code that walks an answer may recurse."""
VALUES = 1_000_000
"""Largest number of objects, arrays and their items: an empty array is two bytes to send and 64 in memory."""
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 without tab and newline, DEL, C1: among them ESC and CSI, which start terminal commands."""
_ORDERING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Bidirectional marks: they make the text after them appear in another order."""
_LINES = "\u2028\u2029\ufeff"
"""Line separators that only some readers treat as such, and the byte order mark."""
_SURROGATES = "\ud800-\udfff"
"""Halves of characters, which no encoding can represent."""
_TAGS = "\U000e0000-\U000e007f"
"""Tag characters, which are never displayed."""
_UNSEEN = "\xad\u034f\u180e\u200b\u2060-\u2064\u206a-\u206f\ufff9-\ufffb\ufffe\uffff"
"""Zero-width characters, and code points that are not characters."""
_ALONE = f"\x00-\x7f\u200c\u200d{_UNSEEN}"
_JOINERS = f"(?<=[{_ALONE}])[\u200c\u200d]|[\u200c\u200d](?=[{_ALONE}])"
"""The two joiners next to characters that they cannot join; between letters and emoji they have a meaning."""
_ESCAPED = re.compile(f"[{_CONTROLS}{_ORDERING}{_LINES}{_SURROGATES}{_TAGS}{_UNSEEN}]|{_JOINERS}")
_HARMLESS = re.compile(r"[\t\n -~]*")
_SURROGATE = re.compile(f"[{_SURROGATES}]")


class InvalidJson(ValueError):
    """Received data is not JSON, or is nested too deeply. The message quotes at most the beginning of the data."""


def escape_controls(text: str) -> str:
    """Write control, bidirectional and unseen characters as `\\x1b`, `\\u202e`; newlines and tabs stay."""
    return text if _HARMLESS.fullmatch(text) else _ESCAPED.sub(lambda found: _escape(found[0]), text)


def escape_to_line(text: str) -> str:
    """Escape as `escape_controls` does, and join the text into one line."""
    return " ".join(escape_controls(text).split())


def escape_json(text: str) -> str:
    """Write the same characters of JSON text as JSON escapes: a reader gets the same values, surrogates included. JSON
    encoders escape C0 themselves."""
    return text if text.isascii() and "\x7f" not in text else _ESCAPED.sub(lambda found: _json_escape(found[0]), text)


def has_surrogate(value: Any) -> bool:
    """Whether a string in plain data has half a character, a lone surrogate, which neither UTF-8 nor a tokenizer can
    represent."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return not text.isascii() and _SURROGATE.search(text) is not None


def replace_surrogates(value: Any) -> Any:
    """Put U+FFFD for each lone surrogate in every string of plain data, so that it can be encoded. Recursive: pass only
    data of bounded depth (`read_json`)."""
    match value:
        case str():
            return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
        case list() | tuple():
            return [replace_surrogates(item) for item in value]
        case dict():
            return {replace_surrogates(name): replace_surrogates(item) for name, item in value.items()}
    return value


def read_json(text: str | bytes | bytearray, depth: int = DEPTH) -> Any:
    """Parse JSON into plain data that can be encoded again: lone surrogates become U+FFFD. Raises `InvalidJson`, also
    for NaN, infinities and integers of more than 4,300 digits."""
    try:
        decoded = text if isinstance(text, str) else text.decode()
        containers = decoded.count("[") + decoded.count("{")
        if containers + decoded.count(",") > VALUES:
            raise InvalidJson(f"JSON of more than {VALUES} values")
        value = _DECODER.decode(decoded)
    except InvalidJson:
        raise
    except (ValueError, RecursionError) as error:  # invalid UTF-8 and a number of 5000 digits raise ValueError too
        raise InvalidJson(f"not JSON: {escape_to_line(str(error))[:200]}") from None
    if containers > depth and _deeper(value, depth):
        raise InvalidJson(f"JSON of more than {depth} levels")
    return replace_surrogates(value) if "\\u" in decoded or _SURROGATE.search(decoded) else value


def _deeper(value: Any, depth: int) -> bool:
    """Whether the nesting exceeds `depth`. Walks level by level: recursion would be as deep as what it measures."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1]
