"""Parses SLURM's time limits: `90`, `90:00`, `1:30:00`, `2-12`, `2-12:30`, `2-12:30:00`."""

from __future__ import annotations

import re

from rlhf.errors import UserError

FORMS = re.compile(r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?P<day_rest>(?::\d+){0,2})|(?P<plain>\d+(?::\d+){0,2}))")


def seconds_of(text: str) -> int:
    """Seconds of a time limit. Raises `UserError` for what SLURM cannot parse, and for zero, which means no limit."""
    form = FORMS.fullmatch(text.strip())
    if form is None:
        raise UserError(f"--time {text!r} is no time; write minutes, hours:minutes:seconds or days-hours")
    seconds = _with_days(form) if form["days"] else _without_days(form["plain"])
    if seconds == 0:
        raise UserError(f"--time {text!r} is zero; give the job at least the time to start, 30 (minutes) for instance")
    return seconds


def _with_days(form: re.Match[str]) -> int:
    rest = [int(part) for part in form["day_rest"].split(":")[1:]]
    minutes, seconds = [*rest, 0, 0][:2]
    return ((int(form["days"]) * 24 + int(form["day_hours"])) * 60 + minutes) * 60 + seconds


def _without_days(text: str) -> int:
    """`minutes`, `minutes:seconds` or `hours:minutes:seconds`."""
    parts = [int(part) for part in text.split(":")]
    if len(parts) == 3:
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)
