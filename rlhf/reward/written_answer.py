"""Rewrite a bare answer, as people write it, as LaTeX that a parser reads completely: without delimiters, label and
unit, and with words as LaTeX. A text of which the parser would skip a part is not an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
"""A pattern and its replacement."""


def _rules(*pairs: tuple[str, str | Callable[[re.Match[str]], str]], flags: int = 0) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern, flags), instead) for pattern, instead in pairs)


NUMBER = re.compile(
    r"([-+]?)\s?[$€£¥₹]?\s?([-+]?)((?!0,)\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(\.\d*)?\s?(\\?%|[$€£¥]|°)?", re.ASCII
)
"""A bare number, with a sign before or after the currency."""
GREEK_NAMES = "alpha beta gamma delta epsilon theta lambda mu phi psi rho sigma tau omega pi Delta Omega Phi Psi Sigma"
FUNCTION_NAMES = "sqrt sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln exp gcd lcm max min det infty"
OTHER_NAMES = {
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan")},
    **dict.fromkeys(("infinity", "inf", "oo"), "infty"),
}
NAMES = frozenset(GREEK_NAMES.split()) | frozenset(FUNCTION_NAMES.split()) | OTHER_NAMES.keys()
"""Names that plain notation writes without a backslash."""
CHANGING_WORDS = """
am pm noon midnight squared cubed square cube root factorial half halves third thirds quarter quarters fourths fifths
sixths eighths tenths hundredths thousandths dozen dozens score gross hundred hundreds thousand thousands million
millions billion billions trillion lakh crore negative minus plus times over div divided multiplied mod modulo
remainder base power powers never not no none nor neither except without isn cannot least most than under above below
between from through until before after past and or to if unless twice double triple thrice zero one two three four
five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty ninety point prime bar
choose inverse reciprocal opposite conjugate fold ish wrong incorrect false impossible excluded invalid undefined
maybe
"""
CHANGING = frozenset(CHANGING_WORDS.split())
"""Words that change the number next to them, and so are not units."""
UNIT_NAMES = """
cm mm km dm kg mg ml ft lb oz yd mi hr in sq cu mL kL dL dB Hz kJ kW eV Pa kN Nm pt qt bp Rs per kmh m s g h L l N J V
W K C F A ohm
"""
SHORT_UNITS = frozenset(UNIT_NAMES.split())
"""Units of one or two letters, or in no dictionary."""
BEFORE = re.compile(
    r"(?i)\A(?:(?:so|thus|hence|therefore|approximately|approx|about|roughly|around|exactly|only|just|a total of)\b"
    r"\.?,?\s*|\\approx\s*|≈\s*|=\s*|~\s*)+"
)
LABEL = re.compile(
    r"(?:[A-Za-z' ]*[A-Za-z ]\b(?:is|are|equals|be)\b\s*:?\s*"
    r"|(?=[A-Za-z]{4}|[A-Za-z]{2,} [A-Za-z])[A-Za-z' ]+[:=]\s*)(?=[^\s:=])"
)
"""Words that introduce an answer: "The answer is", "Area ="."""
UNICODE = str.maketrans({
    "π": "\\pi ", "θ": "\\theta ", "∞": "\\infty ", "∅": "\\emptyset ", "\u211d": "\\mathbb{R}",
    "\u2124": "\\mathbb{Z}", "\u00d7": "\\cdot ", "·": "\\cdot ", "⋅": "\\cdot ", "\u2217": "*", "÷": "/",
    "\u2044": "/", "\u2215": "/", "\u2212": "-", "\u2013": "-", "±": "\\pm ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ",
    "\u222a": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "\u2216": "\\setminus ", "½": "\\frac{1}{2}",
    "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}", "°": "^{\\circ}",
    "\uff05": "%", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\uff0c": ",", "\uff08": "(", "\uff09": ")",
    "\u3001": ",", "\uff1b": ";", "\uff1a": ":", "\u3002": ".",
})  # fmt: skip
SUPERSCRIPTS, SUBSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "₀₁₂₃₄₅₆₇₈₉₋₊"
RAISED = re.compile(f"[{SUPERSCRIPTS}]+|[{SUBSCRIPTS}]+")
LEVELLED = str.maketrans(SUPERSCRIPTS + SUBSCRIPTS, "0123456789-+" * 2)
DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|\\\$|[$`]|\\(?:display|text)style|\\[lr]?vphantom|\*\*(?![\w(\\{])")
AROUND = re.compile(r"^(?:\\[,;:! ]|\\q?quad(?![A-Za-z])|[\s*_,;~])+|(?:\\[,;:!]?|\\q?quad|[\s*_.,;~])+$")
SPACES = re.compile(r"(?<!\\)\\[,;: ]|(?<!\\)\\!|\\q?quad(?![A-Za-z])|~|\\hspace\{[^{}]*\}|\s+")
TEXT = re.compile(
    r"\\(?:(?:text|math)(?:rm|bf|it|sf|tt|normal)?|mbox|operatorname\*?)\s*\{([^{}]*)\}|\{\\rm\s+([^{}]*)\}"
)
FRACTION = r"\\[dtc]?frac"
UNIT_TEXT = r"\\(?:text|math)(?:rm)?\s*\{[^{}]*\}(?:\s*\^\s*\{?\d\}?)?"
UNIT_FRACTION = re.compile(rf"{FRACTION}\s*\{{\s*({UNIT_TEXT})\s*\}}\s*\{{\s*({UNIT_TEXT})\s*\}}$")
THOUSANDS = re.compile(r"(?<![\d.,^_])(?<![\^_]\{)((?!0)\d{1,3})((?:,\d{3})+)(?!,?\d)")
SEPARATED = re.compile(r",\s|;|\band\b|\bor\b")
MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MULTIPLES |= {"lakh": 10**5, "crore": 10**7}
SPELLED = _rules(
    (r"(?<=[\d)}])\s*(?:(?![百千万亿萬億半多余以几成折点度不或])[\u4e00-\u9fff])+$", ""),  # a Chinese unit
    (r"\bplus or minus\b", r"\\pm "),
    (r"\b(?:negative|minus)\s+(?=[\d\\.(a-z])", "-"),
    (r"\bplus\b", "+"),
    (r"(?<=\d)\s+to\s+(?=\d)", ":"),
    (r"\btimes\b", r"\\cdot "),
    (r"\bdivided by\b|(?<=\d)\s+over\s+(?=\d)", "/"),
    (r"\b(?:the )?square root of\s+([\w.]+)", r"\\sqrt{\1}"),
    (r"\b(?:the )?cube root of\s+([\w.]+)", r"\\sqrt[3]{\1}"),
    (r"([\w.)}]+)\s+to the power(?: of)?\s+(-?[\w.]+)", r"\1^{\2}"),
    (r"([\w.)}]+)\s+squared\b", r"\1^{2}"),
    (r"([\w.)}]+)\s+cubed\b", r"\1^{3}"),
    (r"\s*(?:\bper\s?cent\b|\bpercent(?:age)?(?: points?)?\b|\bpct\b)", r"\\%"),
    (r"(?<=\d)\s*(?:\^\s*\{?\s*)?(?:st|nd|rd|th)\b(?:\s*\})?", ""),
    *((rf"(?<=\d)\s*{name}\b", rf" \\cdot {value} ") for name, value in MULTIPLES.items()),
    (r"(?<=\d)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\bdegrees?\b)(?:\s*(?:celsius|fahrenheit|[CF])\b)?", r"^{\\circ}"),
    flags=re.IGNORECASE,
)
"""Words that are numbers or operations, and what they mean."""
COUNTING = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
"""
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
COUNTED = {word: number for number, word in enumerate(COUNTING.split())}
COUNTED |= {word: 10 * number for number, word in enumerate(TENS.split(), 2)}
[COUNTS] = _rules((
    rf"(?i)\b(?:(?:{TENS.replace(' ', '|')})[- ](?:{'|'.join(COUNTING.split()[1:10])})|{'|'.join(COUNTED)})\b(?!-)",
    lambda words: str(sum(COUNTED[word] for word in re.split("[- ]", words[0].lower()))),
))  # fmt: skip
FORMS = _rules(
    (r"\s*;\s*", ","),  # also in intervals, as in Europe
    (r"\^\s*(?:T|\{\s*T\s*\})", "^{1 T}"),  # the parser takes it for a transposition and drops it
    (r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
    (r"∛\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt[3]{\1}"),
    (r"√\s*", r"\\sqrt"),
    (r"\*\*", "^"),
    (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r" \\cdot "),
    (r"(?<=\S)\s*(?:\\approx|≈)\s*[-\d.,]+$", ""),  # an approximation after the value
    (rf"{FRACTION}\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\^(-?\d+)", r"^{\1}"),  # braces around an exponent of several characters
    (r"(?<![\\A-Za-z])I(?![A-Za-z])", r"\\text{I}"),  # a variable, where the parser reads the imaginary unit
    (r"\\gamma(?![A-Za-z]|\s*\()", r"\\text{smallgamma}"),  # and here it is Euler's constant, in both texts
    (r"\\Gamma(?![A-Za-z]|\s*\()", r"\\text{largegamma}"),
    # The name of a derivative: the parser would drop the prime.
    (r"(?<![A-Za-z\\])([A-Za-z])(['\u2032]+)", lambda name: f"{name[1]}_{{{'p' * len(name[2])}}}"),
    (r"\babs\(([^()]*)\)", r"|\1|"),
    (r"\\varnothing|\\(?:left)?\\\{\s*\\(?:right)?\\\}", r"\\emptyset"),
    # A product, not a mixed number.
    (rf"(?<=[\d)\]])(?<!_\d)\s*(?=(?:\\left\s*)?[(\[])|(?<=\))\s*(?={FRACTION}|\d)", r" \\cdot "),
)
"""Rewrites of formulas for the parser."""


def _repeating(decimal: re.Match[str]) -> str:
    sign, whole, once, again = decimal.groups()
    first = int(f"{whole}{once}" or 0)
    above = int(f"{whole}{once}{again}") - first
    return f"{sign}\\frac{{{above}}}{{{10 ** len(once) * (10 ** len(again) - 1)}}}"


ALONE = _rules(
    (r"(-?\d{1,3})((?: \d{3})+)", lambda number: number[0].replace(" ", "")),
    (r"(-?\d+) (?:and )?(\d+)/(\d+)", r"\1\\frac{\2}{\3}"),
    (r"(-?)(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?", _repeating),
    (r"([-+]?(?:\d+\.?\d*|\.\d+))e([-+]?\d+)", r"\1E\2"),
    # The question asks for the digits, not their value.
    (r"([\dA-F]*\d[\dA-F]*)_\s*\{?(\d+)\}?", r"\\text{\1 base \2}"),
    (r"([\dA-F]*\d[\dA-F]*)\s+(?:in )?base\s+(\d+)", r"\\text{\1 base \2}"),
)
"""Forms of a number that are not formulas."""
AS_WRITTEN = re.compile(r"\d+(?:-\d+)+|\d+(?:/\d+){2}|(?!(?:IV|VI)$)(?=[XVI]{2})X{0,3}(?:IX|IV|V?I{0,3})")
"""Ranges, dates, telephone and Roman numbers: they are not differences, quotients or products. IV and VI may be."""
LAST_WORD = re.compile(r"(?:/|\\cdot|\bper\b|-)?\s*(?<![\\A-Za-z_])([A-Za-z]+)\.?\s*(?:\^\s*\{?-?\d\}?)?[.,]?\s*$")
NUMBERS_END = re.compile(r"[\d)}\]%!]$|(?:\\pi|\\infty)$")
WORD = re.compile(r"\\(?:begin|end|operatorname|text)\s*\{[^{}]*\}|\\[A-Za-z]+|_\s*\{[^{}]*\}|(?P<word>[A-Za-z]{2,})")
PRODUCT = re.compile(
    r"(?!is|it|in|on|of|to|be|by|he|we|me|my|no|so|do|go|us|up|an|as|at|if|or|am)[a-z]{2}|[a-d]{3}|[^aeiou]{3}",
    re.IGNORECASE,
)
"""Letters that are variables, not a word."""
CONNECTED = re.compile(r",?\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
RELATION = re.compile(r"[<>]|\\(?:[lg]e(?:q|qslant)?|neq?|[lg]t)(?![A-Za-z])")
ARGUMENT = re.compile(r"(\\sqrt(?:\[[^\]]*\])?|\^)\s*\(")
PASSED_OVER = re.compile(
    r"\.\.\.|…|\\[lc]?dots|\\phantom|\\approx|≈|['\"\u2032\u2033]"  # parsers drop them and their meaning
    r"|:[^:]*:"  # ratios of three
    r"|\d\s*_|(?<![\d._^])[\d.]+\s+\.?\d"  # digits of another base, and numbers side by side
    r"|\d\s*(?!(?:and|or)\b)[A-Za-z]{2,}\s*\d"  # words between numbers
    r"|\d\.\d+\.\d|!!|\\overline\s*\{?\s*\d|\\p?mod|\\equiv"
)
"""Parts of a formula that parsing would lose."""


TRAPS = _rules(
    ("\u2212", "-"),
    (r"\b(?:negative|minus)\s+(?=[$\d.])", "-"),
    (
        rf"(?<![\d,.])(\d[\d,]*+(?:\.\d+)?+)\s*+({'|'.join(MULTIPLES)})\b",
        lambda found: f"{Decimal(found[1].replace(',', '')) * MULTIPLES[found[2].lower()]:f}",
    ),
    (
        r"(?:\b(?:not|never|half|root|twice|double)\b|n't)\s+(?:of\s+|equal to\s+|be\s+)?\$?-?\d[\d,./]*+\$?"
        r"|\$?(?<![\d,./])\d[\d,./]*+\$?\s*+(?:squared|cubed|factorial|choose|to the|[ap]\.?m\b)"
        r"|\b\d{1,2}:\d\d\b|\b\d++\s*+(?:hours?|feet|ft|pounds?|years?|weeks?|days?|minutes?),?\s*(?:and\s*)?\d+\s*[a-z]+",
        " ",
    ),
    flags=re.IGNORECASE,
)
"""Numbers in prose that the words next to them change, or make something else."""


def without_traps(prose: str) -> str:
    """Return prose in which every number that a parser finds is the one meant."""
    # Without the currency sign, which math-verify would take for the edge of a formula.
    return _rewritten(prose, TRAPS).replace("\\$", "")


def undressed(text: str) -> str:
    """Return the text without delimiters, emphasis and final punctuation."""
    bare = RAISED.sub(
        lambda digits: ("^{" if digits[0][0] in SUPERSCRIPTS else "_{") + digits[0].translate(LEVELLED) + "}", text
    ).translate(UNICODE)
    bare = DELIMITERS.sub(" ", bare)
    bare = bare if "..." in bare else AROUND.sub("", bare)
    for opener, closer in (("\\text{", "}"), ("\\mathrm{", "}"), ("\\mathbf{", "}"), ("\\textbf{", "}")):
        inside = bare.removeprefix(opener).removesuffix(closer)
        if bare.startswith(opener) and bare.endswith(closer) and "{" not in inside:
            bare = inside.strip()
    return bare


def as_formula(text: str) -> str | None:
    """Return undressed text as LaTeX that a parser reads completely, without its unit; None if impossible."""
    if "..." in text:
        return None
    latex = _alone(" ".join(text.split()))
    if latex is not None:
        return latex
    latex = re.sub(r"(?<=\d)(?<!\b0)(?:\{,\}|,\\!|\\[,! ]|~)\s*(?=\d{3}(?!\d))", "", text)
    latex = re.sub(r"(?<=\d)\{,\}(?=\d)", ".", latex)
    latex = TEXT.sub(lambda text: f" {text[1] or text[2] or ''} ", _without_unit_text(latex))
    latex = SPACES.sub(" ", latex).strip(" .,;")
    latex = _without_label(BEFORE.sub("", latex))
    if SEPARATED.search(latex) or not re.search(r"[(\[]|\\\{", latex):
        latex = THOUSANDS.sub(lambda number: number[1] + number[2].replace(",", ""), latex)
    latex = _without_unit(_rewritten(latex, SPELLED if "\\" in latex else (COUNTS, *SPELLED)).strip())
    return _alone(latex) or _formed(latex) or None


def _formed(latex: str) -> str | None:
    latex = _rewritten(latex, FORMS)
    latex = _braced(WORD.sub(_named, latex if RELATION.search(latex) else CONNECTED.sub(",", latex)))
    left = {found["word"] for found in WORD.finditer(latex) if found["word"]} - {"and", "or"}
    if PASSED_OVER.search(latex) or not all(PRODUCT.fullmatch(word) and word not in CHANGING for word in left):
        return None
    return latex


def _rewritten(text: str, rules: Iterable[Rule]) -> str:
    for pattern, instead in rules:
        text = pattern.sub(instead, text)
    return text


def _alone(latex: str) -> str | None:
    for pattern, instead in ALONE:
        if pattern.fullmatch(latex):
            return pattern.sub(instead, latex)
    return None


def _without_label(latex: str) -> str:
    label = LABEL.match(latex)
    if label and not any(word in CHANGING for word in re.findall("[a-z]+", label[0].lower())):
        return latex[label.end() :]
    return latex


def _without_unit_text(latex: str) -> str:
    """Return the LaTeX without a unit in `\\text` at its end, where single letters are units too."""
    rest = UNIT_FRACTION.sub(r"\1/\2", latex.strip(" .,;"))
    while text := re.search(
        r"(?:/|\\cdot)?\s*\\(?:text|math)(?:rm|it|normal)?\s*\{([^{}]*)\}\s*(?:\^\s*\{?-?[\d\u00b2]\}?)?$", rest
    ):
        words = re.findall(r"[A-Za-z]+", text[1])
        if not words or not all(map(is_unit, words)) or re.search(r"\d", text[1].replace("^2", "")):
            return latex
        rest = SPACES.sub(" ", rest[: text.start()]).rstrip()
    return rest if NUMBERS_END.search(rest) else latex


def _without_unit(latex: str) -> str:
    rest = latex.strip(" .,;")
    while word := LAST_WORD.search(rest):
        spaced = word[0][0] != word[1][0] or len(word[1]) > 1
        is_area = word[1] in ("square", "cubic") and rest != latex.strip(" .,;")
        if not (is_unit(word[1]) or is_area) or not spaced:
            return latex
        rest = rest[: word.start()].rstrip()
    return rest if NUMBERS_END.search(rest) else latex


def is_unit(word: str) -> bool:
    """Whether a word next to a number says what is counted; a possible product of variables does not."""
    if word in SHORT_UNITS or word.lower() in ("of", "a", "is", "at"):
        return True
    return len(word) > 2 and not PRODUCT.fullmatch(word) and word.lower() not in CHANGING and word not in NAMES


def _named(found: re.Match[str]) -> str:
    """Return a name that plain notation writes without a backslash as LaTeX, also after a factor: `2xsin`."""
    word = found["word"]
    if word is None:
        return found[0]
    word = OTHER_NAMES.get(word, word)
    if word in NAMES:
        return f"\\{word} "
    factor = next((word[:at] for at in (1, 2) if word[at:] in NAMES), None)
    return word if factor is None else f"{factor}\\{word.removeprefix(factor)} "


def _braced(latex: str) -> str:
    """Return the LaTeX with braces around a root's or exponent's parentheses."""
    while opened := ARGUMENT.search(latex):
        depth, end = 1, opened.end()
        while depth and end < len(latex):
            depth += (latex[end] == "(") - (latex[end] == ")")
            end += 1
        if depth:
            return latex
        latex = f"{latex[: opened.start()]}{opened[1]}{{{latex[opened.end() : end - 1]}}}{latex[end:]}"
    return latex
