"""The cages of `tests/sandbox`, for attacks."""

from tests.sandbox.conftest import cage, user

__all__ = ["cage", "user"]
