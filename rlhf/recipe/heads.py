"""Checks that a model's attention heads can be dealt out to an engine's GPUs, and to ranks that share rows."""

from __future__ import annotations

from rlhf.errors import ConfigError
from rlhf.models.folder import Values, text_config
from rlhf.recipe.schema import Recipe


def check_heads(recipe: Recipe, config: Values) -> None:
    """Hold what computes whole heads against the `config.json` of the recipe's model. Raises `ConfigError`."""
    text = text_config(config)
    heads = text.get("num_attention_heads")
    shared = text.get("num_key_value_heads") or heads
    if not isinstance(heads, int) or not isinstance(shared, int):
        return
    sizes: dict[str, tuple[int, ...]] = {
        "trainer.deepspeed.sequence_parallel": (recipe.trainer.deepspeed.sequence_parallel,)
    }
    if recipe.plays:
        sizes["rollout.tensor_parallel_size"] = recipe.rollout.tensor_parallel_sizes
    fitting = [size for size in range(1, heads + 1) if divides(size, heads, shared)]
    for key, size in ((key, size) for key, all_sizes in sizes.items() for size in all_sizes):
        if size not in fitting:
            raise ConfigError(
                f"{key} is {size}, but the model has {heads} attention heads and {shared} key/value heads, which are "
                f"computed whole; use one of {', '.join(map(str, fitting))}"
            )


def divides(size: int, heads: int, shared: int) -> bool:
    """Whether `size` processes have equally many heads, and as many key/value heads, or one each that several have."""
    return heads % size == 0 and (shared % size == 0 or size % shared == 0)
