"""`rlhf check MODEL` says whether a model folder can be trained, how its rows are computed, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlhf.apps.checks.check_training import LabelledText
from rlhf.apps.cli.check import count, describe_folder, describe_model, print_rows
from rlhf.config import merge, parse_override
from rlhf.models.model_files import context_tokens, parameters, tensor_shapes
from rlhf.models.supported_families import measurements
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.planning.layout import engine_layouts, learner_layout
from rlhf.recipe.planning.machines import GIB
from rlhf.recipe.planning.processes import least_state
from rlhf.recipe.preflight import check_model_folder, read_model_config
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import learner_device

PACKED = "several sequences share a row, and compute their common beginning once"
ALONE = "one sequence a row: what samples have in common is computed for each, and rows are padded to their longest"
ROWS = {
    "right": PACKED,
    "right, alone": ALONE,
    "refused": "none: see the family",
    None: "proved at the start of a run; --prove loads the model and proves them here",
}


def run_check_model(folder: Path, overrides: Sequence[str] = (), *, prove: bool = False) -> int:
    """Check a model folder, or a run folder's newest model, and describe it. With `prove` load it, and compare its
    packed rows with single sequences. Raises `UserError`."""
    own = {"model": {"path": str(folder)}, "data": {"train": {"path": "none is read"}}, "sampling": {"max_tokens": 1}}
    values, _ = merge(("model", own), *(("override", {key: value}) for key, value in map(parse_override, overrides)))
    recipe = located(recipe_from(values)).recipe
    check_model_folder(recipe)
    print_rows([("model", describe_model(recipe.model)), *describe_folder(recipe.model), *costs(recipe, prove=prove)])
    return 0


def costs(recipe: Recipe, *, prove: bool) -> Iterator[LabelledText]:
    """Iterate over how rows are computed, the longest sequence, and the least memory of a rank and of an engine."""
    folder = Path(str(recipe.model.path))
    config, shapes = read_model_config(folder), tensor_shapes(folder)
    yield "rows", proved(recipe) if prove else ROWS[measurements().verdict(config)]
    if context := context_tokens(config):
        yield "context", count(context, "token")
    if shapes is not None:
        weights, (engine, *_) = parameters(shapes), engine_layouts(recipe)
        rank = least_state(weights, learner_layout(recipe, {}))
        yield "a rank", f"at least {rank / GIB:.3g} GiB, with the optimizer's state"
        held = weights * engine.width / GIB
        yield "an engine", f"at least {held:.3g} GiB; `rlhf plan RECIPE` counts the rest of both"


def proved(recipe: Recipe) -> str:
    """Load the model and say how its rows are computed right. Raises `ModelError`."""
    from rlhf.models.loading import load_policy, quiet
    from rlhf.models.probe import proved_rows

    model, path = recipe.model, str(recipe.model.path)
    policy = load_policy(
        path, dtype=model.dtype, attention=model.attention, trust_remote_code=model.trust_remote_code,
        loader=model.loader,
    )  # fmt: skip
    with quiet():
        rows = proved_rows(policy, path, device=learner_device(recipe), packing=recipe.trainer.packing)
    return f"{ALONE} (proved here: {rows.why_alone})" if rows.why_alone else f"{PACKED} (proved here)"
