"""Parse a bare answer in everyday notation: a number with a currency or a unit, or a formula without its delimiters.
The whole text is parsed."""

from __future__ import annotations

import re

NUMBER = re.compile(
    r"[-+]?[$€£¥]?[-+]?((\d+|\d{1,3}(,\d{3})+)?(\.\d+)?|\d+/\d+)(?<=\d)(%|°|cm|mm|km|kg|mg|ml|mL|ft|lbs?|oz|mph)?",
    re.ASCII,
)
UNIT = re.compile(
    r"([A-Za-z]{3,}|is|at|of|in|am|pm|an|hr|ft|lb|oz|yd|mi|mL|[mckd]?m|[mk]?[gl]|sq|[shL])[,:.]?|[$€£¥%°]"
    r"|(in|ft|yd|mi|[mckd]?m)(\^[23]|[²³])|(ft|mi|k?m|k?g)/(s|h|hr|min|L|ml|m)"
)
"""Words allowed around a number. Possible products of variables, such as xy, are excluded."""
FORMULAS = re.compile(
    "pi|sqrt|sin|cos|tan|log|ln|exp|mod|div|and|or|to|minus|plus|times|over|negative|half|dozen|hundred|thousand"
    "|[mbtr]+illion|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|phi|psi|rho|sigma|tau|omega|infinity",
    re.IGNORECASE,
)
"""Words that change the value of the number beside them."""


def is_number(text: str) -> bool:
    """Whether the whole text is one number in everyday notation: "$1,080", "5 hours", "about 42 cm^2.", "**7**"."""
    words = text.strip(" \t*.").split()
    numbers = [word for word in words if NUMBER.fullmatch(word)]
    others = [word for word in words if not NUMBER.fullmatch(word)]
    return len(numbers) == 1 and all(
        UNIT.fullmatch(word) and not FORMULAS.fullmatch(word.rstrip(",:.")) for word in others
    )


def as_formula(text: str) -> str:
    """The text as the content of `\\boxed{}`, with multi-character exponents in LaTeX notation."""
    return re.sub(r"\^(-?\d+)", r"^{\1}", text.strip("* \t"))
