"""Texts and conditions over the columns of a row, in Jinja's sandbox. A name without a value is an error, so that a
missing column never becomes an empty text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator

from rlhf.data.columns import Row, as_text, column_names, is_missing, kind_of
from rlhf.errors import DataError, Raised, catch


@cache
def _compiled(source: str, *, condition: bool = False) -> Any:
    """Compile a template, or a condition. Raises `ValueError` if Jinja cannot read it."""
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    jinja = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, finalize=_written, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    try:
        return jinja.compile_expression(source, undefined_to_none=False) if condition else jinja.from_string(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"Jinja cannot read line {error.lineno}: {error.message}") from None


TextTemplate = Annotated[str, AfterValidator(lambda source: _compiled(source) and source)]
Condition = Annotated[str, AfterValidator(lambda source: _compiled(source, condition=True) and source)]


def row_text(template: str, row: Row, key: str, where: str) -> str:
    """Return the text that a template makes of a row. Raises `DataError` with the template's `key`."""
    return str(_evaluated(_compiled(template).render, row, key, where))


def holds(condition: str, row: Row, key: str, where: str) -> bool:
    """Whether a condition is true for a row. Raises `DataError`, also for a value that is neither true nor false."""

    def asked(names: dict[str, Any]) -> bool:
        value = _compiled(condition, condition=True)(names)
        if not isinstance(value, bool):
            raise DataError(f"it is {value!s:.80}, neither true nor false; compare it with a value")
        return value

    return bool(_evaluated(asked, row, key, where))


def _evaluated(work: Callable[[dict[str, Any]], Any], row: Row, key: str, where: str) -> Any:
    """Evaluate with the columns of a row as names, and all of them as `row`. Missing values have no name."""
    from jinja2 import TemplateError

    given = {name: value for name, value in row.items() if not is_missing(value)}
    outcome = catch(lambda: work({"row": given, **given}))
    if isinstance(outcome, Raised):
        error = outcome.error
        said = error if isinstance(error, (DataError, TemplateError)) else f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: {key} fails: {said}; the row has {column_names(row)}") from error
    return outcome


def _written(value: Any) -> Any:
    """Return what a template writes for a value: the text of the file, but no list or object, as in a column."""
    from jinja2 import Undefined

    text = as_text(value)
    if text is None and not isinstance(value, Undefined):
        raise DataError(f"it writes {kind_of(value)} where text is needed; name a part of it, or use join or tojson")
    return value if text is None else text
