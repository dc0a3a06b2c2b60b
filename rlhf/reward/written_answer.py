"""An answer that stands alone, as people write it: a number with a currency or a unit, or a formula without its
delimiters. What is read of it is the whole of it: what the parser would pass over makes it no answer."""

from __future__ import annotations

import re

NUMBER = re.compile(
    r"[-+]?[$€£¥]?[-+]?((\d+|\d{1,3}(,\d{3})+)?(\.\d+)?|\d+/\d+(?!%))(?<=\d)(%|°|cm|mm|km|kg|mg|ml|mL|ft|lbs?|oz|mph)?",
    re.ASCII,
)
UNIT = re.compile(
    r"([A-Za-z]{3,}|is|at|of|in|am|pm|an|hr|ft|lb|oz|yd|mi|mL|[mckd]?m|[mk]?[gl]|sq|[shL])[,:.]?|[$€£¥%°]"
    r"|(in|ft|yd|mi|[mckd]?m)(\^[23]|[²³])|(ft|mi|k?m|k?g)/(s|h|hr|min|L|ml|m)"
)
"""Words around a number. What may be a product of variables, such as xy, is none."""
FORMULAS = re.compile(
    "pi|sqrt|sin|cos|tan|log|ln|exp|mod|div|and|or|to|minus|plus|times|over|negative|half|dozen|hundred|thousand"
    "|[mbtr]+illion|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|phi|psi|rho|sigma|tau|omega|infinity"
    "|not|than|least|most",
    re.IGNORECASE,
)
"""Words that make another number of the one beside them."""
DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))
FORMS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"^\s*(\\approx|≈|=)", ""),
        (r"\\(?:math|text)(?:rm|bf|it|normal)|\\mbox", r"\\text"),
        (r"\\text\s*\{([^A-Za-z{}]*)\}|\\text\s*\{\s*([ei])\s*\}|\{\\rm\s+([ei])\s*\}", r" \1\2\3 "),
        (r"(?<=\d)(?:\{,\}|,\\!|\\[,! ]|~)\s*(?=\d{3}(?!\d))", ""),  # thousands
        (r"(?<!\\)\\[,;:! ]|~", " "),
        (r"\\[dtc]?frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\^(-?\d+)", r"^{\1}"),  # an exponent of several characters as LaTeX wants it
        (r"(\d+)\s*/\s*(\d+)\s*\\?%", r"\\frac{\1}{\2 \\cdot 100}"),
        (r"(?<!\d)(?<!\d )\\[dtc]?frac\s*\{(\d+)\}\s*\{(\d+)\}\s*\\?%", r"\\frac{\1}{\2 \\cdot 100}"),
        # A product, no mixed number.
        (r"(?<=[\d)\]])(?<!_\d)\s*(?=(?:\\left\s*)?[(\[])|(?<=\))\s*(?=\\[dtc]?frac|\d)", r" \\cdot "),
    )
)
"""How the same formula is written for the parser."""


def _repeating(decimal: re.Match[str]) -> str:
    """Return the fraction that a decimal with repeating digits is."""
    sign, whole, once, again = decimal.groups()
    first = int(f"{whole}{once}" or 0)
    above = int(f"{whole}{once}{again}") - first
    return f"{sign}\\frac{{{above}}}{{{10 ** len(once) * (10 ** len(again) - 1)}}}"


ALONE = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"(-?\d{1,3}) (\d{3})", r"\1\2"),
        (r"(-?\d+) (\d+)/(\d+)", r"\1\\frac{\2}{\3}"),
        (r"(-?)(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?", _repeating),
        (r"([-+]?(?:\d+\.?\d*|\.\d+))e([-+]?\d+)", r"\1E\2"),
        (r"(\d[\dA-F]*)_\{?(\d+)\}?", r"\\text{\1 base \2}"),  # the digits, not their value, are what is asked for
    )
)
"""Forms of a number that are no formula."""
LABEL = re.compile(r"^\\text\s*\{[A-Za-z ]*(?::|\bis)\s*\}(?=.)")
WITH_UNIT = re.compile(r"\s*\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?[23]\}?)?$")
WITH_WORDS = re.compile(r"(?<=[\d})])\s+([A-Za-z]{4,}(?:\s[A-Za-z]+)*)$")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
VARIABLE = re.compile(r"\\text\s*\{\s*([A-Za-z])\s*\}")
ONE_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
CONNECTED = re.compile(r",?\s*\\text\s*\{\s*(?:and|or)\s*\}")
PASSED_OVER = re.compile(
    r"\.\.\.|…|\\[lc]?dots|\\phantom|\\approx|≈|['\"\u2032\u2033]"  # parsers drop them, with what they say
    r"|\b\d{1,2}:[0-5]\d\b|:[^:]*:"  # the time of day, and ratios of three
    r"|\d\s*_|(?<![\d._^])[\d.]+\s+\.?\d"  # digits of another base, and numbers side by side
    r"|\d\s*(?!(?:and|or)\b)[A-Za-z]{2,}\s*\d"  # words between numbers
    r"|(?<![A-Za-z])(?:dozen|hundred|thousand|[mbtr]+illion)|\d\.\d+\.\d|!!|\\overline\s*\{?\s*\d"
    r"|\\text"
)
"""What a formula says and its reading would not."""


def undressed(text: str) -> str:
    """Return the text without what delimits it."""
    bare = text.strip(" \t\n*").replace("\\$", "$")
    for opener, closer in DELIMITERS:
        if bare.startswith(opener) and bare.endswith(closer) and len(bare) >= len(opener + closer):
            bare = bare[len(opener) : -len(closer)].strip()
    said = ONE_TEXT.fullmatch(bare)
    return said[1].strip() if said and is_number(said[1]) else bare


def is_number(text: str) -> bool:
    """Whether the whole text is one number as people write it: "$1,080", "5 hours", "about 42 cm^2.", "**7**"."""
    words = text.strip(" \t*.").split()
    numbers = [word for word in words if NUMBER.fullmatch(word)]
    others = [word for word in words if not NUMBER.fullmatch(word)]
    return len(numbers) == 1 and _are_units(others)


def as_formula(text: str) -> str | None:
    """Return the text as LaTeX of which a parser reads everything, without its unit; None where that cannot be."""
    if "..." in text:
        return None
    latex = text.strip(" \t*.,;")
    for pattern, instead in ALONE:
        if pattern.fullmatch(latex):
            return pattern.sub(instead, latex)
    for pattern, instead in FORMS:
        latex = pattern.sub(instead, latex)
    latex = _without_unit(LABEL.sub("", latex.strip()))
    if not ONE_TEXT.fullmatch(latex):
        latex = CONNECTED.sub(",", VARIABLE.sub(r" \1 ", latex))
        if PASSED_OVER.search(latex):
            return None
    return latex or None


def _without_unit(latex: str) -> str:
    unit = WITH_UNIT.search(latex)
    if unit and unit.start() and _are_units(unit[1].split()):
        return latex[: unit.start()]
    words = WITH_WORDS.search(latex)
    if words and _are_units(words[1].split()) and not WORD.search(latex[: words.start()]):
        return latex[: words.start()]
    return latex


def _are_units(words: list[str]) -> bool:
    return all(UNIT.fullmatch(word) and not FORMULAS.fullmatch(word.rstrip(",:.")) for word in words)
