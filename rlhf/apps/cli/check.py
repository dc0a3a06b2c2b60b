"""`rlhf check` validates a recipe and describes the run, without running it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rlhf.apps.checks.check_rows import check_rows
from rlhf.apps.checks.check_training import LabelledText, describe_gpus, describe_rate, training
from rlhf.apps.checks.check_unit_tests import describe_unit_tests
from rlhf.apps.checks.gold import describe_golds, try_functions
from rlhf.apps.checks.own_pieces import import_own_pieces
from rlhf.chat.tool_format_names import AUTO
from rlhf.cluster.roles import role_table
from rlhf.data.config import HELD_OUT, DatasetConfig, EvaluationSetConfig
from rlhf.env.config import EnvironmentConfig
from rlhf.env.function_tools import found_tools
from rlhf.models.config import ModelConfig
from rlhf.models.model_files import GENERATION, parameters, tensor_shapes
from rlhf.models.supported_families import measurements
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.placement import describe_placement
from rlhf.recipe.planning.memory_check import check_memory
from rlhf.recipe.preflight import check_hub, check_placement, check_recipe, is_hub_name, read_model_config
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import roles_of
from rlhf.runs.recorded_episodes import recorded_episodes
from rlhf.trainer.config import CorrectionConfig
from rlhf.trainer.league import LeagueConfig
from rlhf.trainer.offline import read_recording
from rlhf.trainer.replay import MAX_AGE

ISOLATED = {"thread": "in threads", "process": "each session in a process"}
"""Descriptions of the values of `environment.isolation`."""


def run_check(recipe: Path, overrides: Sequence[str] = ()) -> int:
    """Validate a recipe; print its derived values and its workers, then check this machine. Raises `UserError`."""
    found = located(load_recipe(recipe, overrides))
    loaded, roles = found.recipe, roles_of(found.recipe)
    check_recipe(loaded)
    import_own_pieces(loaded)
    about = [("reward", told) for told in try_functions(loaded)]
    check_memory(loaded)
    about += [*(("the template", told) for told in told_by_template(loaded)), *describe_warmup(loaded)]
    notes, prompt = check_rows(loaded)
    about_rows = [*(("rows", told) for told in notes), *([("first prompt", prompt)] if prompt else [])]
    made, each = loaded.trainer.updates, loaded.trainer.groups_per_update
    one = "group" if loaded.kind == "offline" else "example"
    data = f"{count(made, 'update')} of {count(each, one)} each, {made * each:,} in all"
    updates = [*(derived(loaded) if loaded.plays else [("the run", data)]), *describe_pauses(loaded)]
    about_training = [*training(found), *describe_gpus(loaded, roles), *describe_placement(found)]
    print_rows([("recipe", str(recipe)), *parts(loaded), *about, *about_rows, *updates, *about_training])
    print()
    print(role_table(roles))
    if loaded.cluster.address:
        print(f"the run checks whether they fit when it joins the cluster at {loaded.cluster.address}")
    check_placement(loaded)
    check_hub(loaded)
    return 0


def told_by_template(recipe: Recipe) -> tuple[str, ...]:
    """Check that the chat template writes tool calls in the format that is parsed, as the run does at its start; return
    what the run will say about it. The tools of an environment are not known here, so only a format that its recipe
    names is checked. Raises `ConfigError`."""
    named = recipe.environment is not None and recipe.environment.tool_format not in (AUTO, "none")
    path = recipe.model.path
    if not (named or recipe.agent) or (path and is_hub_name(path)):
        return ()
    from rlhf.chat.format_choice import PROBE, told_of_tools
    from rlhf.chat.renderer import ChatRenderer
    from rlhf.controller.build import load_renderer
    from rlhf.models.tiny import byte_tokenizer

    if path is None and not recipe.agent:
        return ()
    renderer = load_renderer(recipe, os.path.expanduser(path), [PROBE]) if path else ChatRenderer(byte_tokenizer())
    return (*renderer.told, *(told_of_tools(renderer) if recipe.agent else ()))


def describe_warmup(recipe: Recipe) -> list[LabelledText]:
    """Say whether the warm-up teaches replies that the run will cut off. A tiny model writes each byte as a token, and
    one for the end."""
    from rlhf.controller.start_model import lessons_of

    lessons, most = lessons_of(recipe) if recipe.plays else None, recipe.sampling.max_tokens
    said = [one for talk in (lessons.conversations if lessons else ()) for one in talk if one.role == "assistant"]
    long = [size for one in said if (size := len(one.content.encode()) + 1) > most]
    told = f"{len(long):,} of its {len(said):,} replies have up to {max(long, default=0)} tokens, of which "
    return [("warm-up", f"{told}sampling.max_tokens leaves {most}: raise it")] if long else []


def print_rows(rows: Sequence[LabelledText]) -> None:
    """Print labels and texts in two columns."""
    for label, text in rows:
        print(f"{label:<15}{text}".replace("\n", "\n" + " " * 15))


def parts(recipe: Recipe) -> list[LabelledText]:
    """Return the model, the data, the environment and the run folder."""
    held_out = [describe_evaluation(name, dataset, recipe) for name, dataset in recipe.data.eval_sets.items()]
    return [
        ("run", f"{recipe.name}, kind {recipe.kind}, in {recipe.run_dir}"),
        ("model", describe_model(recipe.model)),
        *describe_folder(recipe.model),
        *(
            ("training data", describe_dataset(config) + (f", weight {config.weight:g}" if config.weight else ""))
            for config in recipe.data.train_sets.values()
        ),
        *([("episodes", describe_episodes(recipe))] if recipe.data.episodes else []),
        *(describe_environment(recipe.environment) if recipe.environment else []),
        *(
            [
                (
                    "agent",
                    f"{agent.program or agent.preset or agent.command[0]}, at most "
                    f"{count(agent.max_agents, 'episode')} at once, each of {agent.timeout_seconds:g} s",
                )
            ]
            if (agent := recipe.agent)
            else []
        ),
        *(("policy", describe_policy(recipe, name)) for name in recipe.policies),
        *([("league", describe_league(recipe.league))] if recipe.league else []),
        *[("unit tests", text) for text in describe_unit_tests(recipe)],
        *[("gold answers", text) for text in describe_golds(recipe)],
        *(("held out", text) for text in held_out or ["none: the run will not be evaluated"]),
    ]


def describe_league(league: LeagueConfig) -> str:
    """Return who its members are, when one enters, and who plays against them."""
    above = f" if it won more than {league.add_above:.0%} of its games" if league.add_above else ""
    return (
        f"{league.policy} against itself and its past versions, at most {league.members}; a copy joins every "
        f"{count(league.add_every, 'update')}{above}; opponents are drawn by {league.match}"
    )


def describe_policy(recipe: Recipe, name: str) -> str:
    """Return who a policy is, what it plays, and how it is trained."""
    plays = (
        recipe.roles
        if isinstance(recipe.roles, str)
        else ", ".join(role for role, player in recipe.roles.items() if player == name)
    )
    policy, trainer = recipe.policies[name], recipe.of_policy(name).trainer
    trained = describe_rate(trainer.optimizer, trainer.optimizer_steps) if policy.trained else "not trained"
    begins = f" from {policy.adapter}" if policy.adapter else ""
    begins += f", over {policy.model.path or 'a tiny model'} of its own" if policy.model else ""
    return f"{name}: LoRA of rank {policy.lora.rank}{begins}, plays {plays or 'as the league says'}; {trained}"


def describe_episodes(recipe: Recipe) -> str:
    """Return the recorded groups that are there to learn from, and what their rewards are compared with."""
    named = str(recipe.data.episodes)
    if not Path(named).expanduser().exists():
        return f"{named}, which is not there yet"
    recording = read_recording(recipe.trainer, recorded_episodes(named), sees=bool(recipe.model.tower))
    return f"{named}: {recording.describe()}"


def derived(recipe: Recipe) -> list[LabelledText]:
    """Return the batch sizes and counts that follow from the recipe."""
    trainer, tokens, replay = recipe.trainer, recipe.sampling.max_tokens, recipe.trainer.replay
    reused = f"{count(replay.groups, 'group')} an update, within {count(MAX_AGE, 'update')} of their first"
    return [
        (
            "an update",
            f"{count(trainer.groups_per_update, 'group')} x {count(trainer.group_size, 'sample')} = "
            f"{count(trainer.samples_per_update, 'sample')} of at most {count(tokens, 'token')}",
        ),
        (
            "steps",
            f"{count(trainer.epochs, 'epoch')} x {count(trainer.minibatches, 'minibatch')} = "
            f"{count(trainer.epochs * trainer.minibatches, 'optimizer step')}, "
            f"micro-batches of at most {count(trainer.tokens_per_microbatch, 'token')} a rank",
        ),
        (
            "the run",
            f"{count(trainer.updates, 'update')} = {count(trainer.updates * trainer.samples_per_update, 'sample')}, "
            f"{count(trainer.optimizer_steps, 'optimizer step')}",
        ),
        (
            "in flight",
            f"{count(trainer.tickets, 'group')} at once, at most {count(trainer.max_staleness, 'update')} stale",
        ),
        *([("second uses", f"at most {reused}")] if trainer.replay.groups else []),
        *(
            [("correction", describe_correction(trainer.correction))]
            if trainer.proximal_logprobs == "recomputed"
            else []
        ),
    ]


def describe_correction(config: CorrectionConfig) -> str:
    """Describe the treatment of tokens whose log-probs differ between engine and learner."""
    if config.method == "none":
        return "none: the difference of engine and learner is measured only"
    weighed = {
        "token": "tokens weighed by learner over engine",
        "sequence": "sequences weighed by learner over engine",
        "geometric": "sequences weighed by the geometric mean of learner over engine",
    }[config.level]
    bound = "at most" if config.method == "truncate" else f"left out below {config.low:g} and above"
    return f"{weighed}, {bound} {config.high:g}"


def count(number: int, thing: str) -> str:
    """Return `1 batch` or `4,096 batches`."""
    plural = "" if number == 1 else "es" if thing.endswith("tch") else "s"
    return f"{number:,} {thing}{plural}"


def describe_pauses(recipe: Recipe) -> list[LabelledText]:
    """Return when a run evaluates and saves."""
    trainer, every = recipe.trainer, recipe.trainer.save_every
    again = f", and every {count(trainer.eval_every, 'update')}" if trainer.eval_every else ""
    evaluated = f"before and after{again}" if recipe.data.eval else "none"
    regular = f", and every {count(every, 'update')}" if isinstance(every, int) and every else ""
    often = ", and as often as costs 2 % of the time" if every == "auto" else regular
    if minutes := trainer.save_every_minutes:
        often += f", at the latest {minutes:g} minutes after the last one"
    saved = f"at the end{often}, the newest {trainer.keep_checkpoints} are kept"
    return [("evaluation", evaluated), ("checkpoints", saved)]


def describe_model(model: ModelConfig) -> str:
    """Return the model in one line."""
    if model.tiny is None:
        return f"{model.path}, {model.dtype}"
    tiny = model.tiny
    warmup = f", warmed up for {count(model.warmup.updates, 'update')}" if model.warmup else ", not warmed up"
    return (
        f"tiny {tiny.architecture}: {tiny.layers} layers of {tiny.hidden_size}, "
        f"context of {tiny.max_position_embeddings} tokens, {model.dtype}{warmup}"
    )


def describe_folder(model: ModelConfig) -> list[LabelledText]:
    """Return family and size of a model folder, and what exports of it leave out; nothing for tiny models and for names
    on the hub."""
    if model.path is None or is_hub_name(model.path):
        return []
    folder = Path(model.path).expanduser()
    config, shapes = read_model_config(folder), tensor_shapes(folder)
    size = "unknown without safetensors files" if shapes is None else f"{parameters(shapes):,}"
    classes = f" ({', '.join(map(str, architectures))})" if (architectures := config.get("architectures")) else ""
    left = ""
    if (folder / GENERATION).exists():
        from rlhf.models.loading import unsaved_settings

        left = ", ".join(unsaved_settings(str(folder)))
    unsaved = f"leave out {left} of {GENERATION}, which transformers does not save again"
    return [
        ("family", f"{config['model_type']}{classes}: {measurements().verdict_text(config)}"),
        ("parameters", size),
        *([("exports", unsaved)] if left else []),
    ]


def describe_environment(config: EnvironmentConfig) -> list[LabelledText]:
    """Return the environment, the rules of its turns, and where it runs."""
    seen = "all of it" if config.last_n is None else f"the last {count(config.last_n, 'turn')}"
    if config.last_n == 0:
        seen = "the latest observation"
    rules = f"at most {count(config.max_turns, 'turn')}, of which the policy sees {seen}"
    where = f"on {count(config.servers, 'server')} of this run" if config.servers else "next to the controller"
    place = "on servers that run already" if config.urls else f"{where}, {ISOLATED[config.isolation]}"
    if recording := config.recording:
        place = f"replayed from {recording.path}" if config.is_replayed else f"{place}, recorded in {recording.path}"
    offered = [one.tool for one in found_tools(config.tools)] if not config.is_replayed else []
    tools = [f"{one.name}: {' '.join(one.description.split())} {json.dumps(one.parameters)}" for one in offered]
    return [("environment", f"{config.shown}, {rules}"), *(("tool", told) for told in tools), ("it runs", place)]


def describe_evaluation(name: str, config: EvaluationSetConfig, recipe: Recipe) -> str:
    """Return the evaluation set in one line: its rows, and how replies to them are sampled, if they are."""
    described = ("" if name == HELD_OUT else f"{name}: ") + describe_dataset(config)
    if not recipe.plays:
        return described
    sampled = "greedily" if config.temperature == 0 else f"at temperature {config.temperature:g}"
    return f"{described}; {count(config.samples, 'sample')} of each problem, {sampled}"


def describe_dataset(config: DatasetConfig) -> str:
    """Return the dataset in one line."""
    limit = f", the first {config.limit:,} rows" if config.limit else ""
    if config.tasks is not None:
        arguments = ", ".join(f"{name} {value}" for name, value in config.arguments.items())
        return config.tasks + (f" ({arguments})" if arguments else "") + limit
    if config.seeds is not None:
        return f"{count(config.seeds, 'seed')} of the environment{limit}"
    split = "" if Path(str(config.path)).is_file() else f", split {config.split}"
    return f"{config.path}{split}{limit}"
