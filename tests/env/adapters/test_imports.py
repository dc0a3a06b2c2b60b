"""A package that is not installed is named, with what to do."""

from __future__ import annotations

import pytest

from rlhf.env.adapters.imports import imported
from rlhf.errors import ConfigError


def test_a_missing_package_names_the_extra_to_install() -> None:
    with pytest.raises(ConfigError, match=r"needs no_such_package.*pip install 'rlhf\[environments\]'"):
        imported("no_such_package.inner")
