"""Fast checks of a recipe, without torch, before anything heavy starts: files, folders, placement."""

from __future__ import annotations

import locale
import os
import re
from itertools import islice
from pathlib import Path
from typing import Any

from rlhf.chat.tool_calls import check_tool_format
from rlhf.cluster.machine import this_machine
from rlhf.cluster.roles import check_resources
from rlhf.config import check_found, is_piece, load_bound, load_piece, read_yaml
from rlhf.data.config import DatasetConfig
from rlhf.data.demonstrations import demonstration_from_row
from rlhf.data.few_shot import with_shots
from rlhf.data.own_tasks import check_tasks
from rlhf.data.preference import pair_from_row
from rlhf.data.rows import task_from_row
from rlhf.data.sources import local_files, read_rows
from rlhf.engines.vllm.environment import installed_device
from rlhf.engines.vllm.user_arguments import check_arguments, check_variables
from rlhf.errors import ConfigError, ModelError, PlacementError, Raised, catch
from rlhf.http.binding import token_from
from rlhf.http.config import check_recording
from rlhf.models.model_files import (
    Values,
    check_dimensions,
    check_generation,
    check_template,
    check_tokenizer,
    check_vocabulary,
    context_tokens,
    embedding_rows,
    held_instead,
    read_json_object,
    refuse_adapters,
    tensor_shapes,
    text_config,
)
from rlhf.models.model_types import brings_code, check_generates, check_remote_code
from rlhf.recipe.kinds import start_of
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import engine_device, learner_device, roles_of, shares_one_gpu, transfer_backend
from rlhf.rollout.agent_command import agent_program
from rlhf.rollout.endpoint.threads import trains_of
from rlhf.runs.loggers import check_loggers
from rlhf.runs.recorded_episodes import recorded_episodes
from rlhf.types import Task

CACHE = "TORCHINDUCTOR_CACHE_DIR"
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
HUB_SECONDS = 5
READ_BYTES = 4 * 2**20
"""Size of the files whose every row is checked, in a quarter of a second; the run reads larger ones itself."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def preflight(recipe: Recipe) -> None:
    """Check the files, packages, GPUs and variables that `recipe` needs. Raises a `UserError` of one line."""
    check_recipe(recipe)
    check_placement(recipe)
    check_hub(recipe)


def check_recipe(recipe: Recipe) -> None:
    """Check all that does not depend on the size and the network of this machine. Raises `UserError`."""
    check_encoding()
    check_cache()
    check_devices(recipe)
    check_engines(recipe)
    check_pieces(recipe)
    check_loggers(recipe.run.loggers)
    token_from(recipe.run.prometheus.token_env)
    for base in recipe.bases:
        check_model_folder(recipe.of_base(base))
    check_other_models(recipe)
    check_reward_servers(recipe)
    check_episodes(recipe)
    check_players(recipe)
    for key, dataset in recipe.data.sets.items():
        check_dataset(dataset, key, recipe.kind)
    check_few_shot(recipe)


def check_encoding() -> None:
    """Check that a program of Python uses UTF-8 for files, as the command line does. Raises `ConfigError`."""
    if (encoding := locale.getpreferredencoding(False)).lower() != "utf-8":
        raise ConfigError(f"this Python's locale reads and writes files in {encoding}; set PYTHONUTF8=1 for UTF-8")


def check_cache() -> None:
    """Check that the cache that a variable names for torch can be written. Raises `ConfigError`."""
    if not (folder := os.environ.get(CACHE)):
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{CACHE}={folder} cannot be created ({error.strerror}); name another folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{CACHE}={folder} cannot be written; name another folder")


def check_placement(recipe: Recipe) -> None:
    """Check that this machine has enough for all workers, unless they join a cluster. Raises `PlacementError`."""
    if recipe.cluster.address:
        return
    if recipe.cluster.nodes > 1:
        raise PlacementError(
            f"cluster.nodes is {recipe.cluster.nodes}, but without cluster.address there is only this machine; "
            "give the address of a Ray cluster, or leave cluster.nodes at 1"
        )
    check_resources(roles_of(recipe), [this_machine()])


def check_hub(recipe: Recipe) -> None:
    """Check that a model by hub name is in the cache or that the hub has it, unless the workers join a cluster. Without
    a network the libraries would retry for more than a minute. Raises `ModelError`."""
    if (name := recipe.model.path) is None or not is_hub_name(name) or recipe.cluster.address:
        return
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    found = catch(lambda: get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=HUB_SECONDS))
    if isinstance(found, Raised):
        asked = f"model.path={name} is neither a folder nor in the hub's cache on this machine, and the hub"
        if isinstance(found.error, HfHubHTTPError):
            raise ModelError(
                f"{asked} does not give it; check the name, and set HF_TOKEN for a model with restrictions"
            )
        raise ModelError(
            f"{asked} cannot be reached; give a folder, or run `hf download {name}` where it can, and copy the cache"
        )


def check_devices(recipe: Recipe) -> None:
    """Check that every chosen feature works on the recipe's devices and processes. Raises `ConfigError`."""
    if recipe.model.dtype == "float16" and learner_device(recipe) == "cpu":
        raise ConfigError("model.dtype is float16, which trains on GPUs only; on a CPU use float32 or bfloat16")
    if not recipe.plays:
        return
    backend = recipe.trainer.weight_sync.backend
    if backend in ("nccl", "ipc") and recipe.cluster.kind == "local":
        raise ConfigError(
            f"trainer.weight_sync.backend is {backend}, but cluster.kind: local runs rank and engine in one process, "
            f"and {backend} joins processes; use auto or gloo, or cluster.kind=ray"
        )
    if backend in ("nccl", "ipc") and "cpu" in (engine_device(recipe), learner_device(recipe)):
        raise ConfigError(
            f"trainer.weight_sync.backend is {backend}, but not every engine and rank has a GPU "
            "(rollout.gpus_per_engine, trainer.deepspeed.gpus_per_rank); use auto or gloo"
        )
    if backend == "ipc" and recipe.cluster.placement != "colocated" and not shares_one_gpu(recipe):
        raise ConfigError(
            "trainer.weight_sync.backend is ipc, by which a rank sends to an engine on its own GPU, but engines have "
            "other GPUs; use auto or nccl, or cluster.placement=colocated"
        )
    for name in ALLOCATOR if transfer_backend(recipe) == "ipc" else ():
        if "expandable_segments:true" in os.environ.get(name, "").lower().replace(" ", ""):
            raise ConfigError(
                f"{name} has expandable_segments:True, but weights travel by ipc, and most hosts do not let an engine "
                "open such memory of a rank; unset the variable, or set trainer.weight_sync.backend to gloo"
            )
    if engine_device(recipe) == "cpu" and installed_device() == "cuda":
        raise ConfigError(
            "rollout.gpus_per_engine is 0, but the installed vLLM computes on GPUs only; give 1 (on a single GPU with "
            "cluster.placement=colocated and trainer.deepspeed.gpus_per_rank=1), or install vLLM for CPUs"
        )


def check_engines(recipe: Recipe) -> None:
    """Check the arguments that the recipe passes to vLLM, also on a CPU. Raises `ConfigError`."""
    if not recipe.plays:
        return
    check_arguments(recipe.rollout.vllm, "rollout.vllm")
    check_variables(recipe.rollout.env_vars, "rollout.env_vars")
    if recipe.rollout.vllm.get("enable_chunked_prefill") and engine_device(recipe) == "cpu":
        raise ConfigError(
            "rollout.vllm.enable_chunked_prefill is true, but vLLM rewinds a request's random generator for a prompt "
            "in parts, which a CPU's cannot; leave it out"
        )


def check_pieces(recipe: Recipe) -> None:
    """Check that user-defined pieces exist, and that a user-defined kind and the function of demonstrations can be
    called. Raises `ConfigError`."""
    trainer = recipe.trainer
    named = {
        "trainer.loss.policy": trainer.loss.policy,
        "trainer.advantage.estimator": trainer.advantage.estimator,
        **{f"callbacks.{place}": callback.call for place, callback in enumerate(recipe.callbacks)},
        **{f"run.loggers.{place}": name for place, name in enumerate(recipe.run.loggers)},
    }
    for setting, name in named.items():
        if is_piece(name):
            check_found(name, setting)
    if recipe.is_own_kind:
        start_of(recipe.kind, recipe.kind_arguments)
    if (warmup := recipe.model.warmup) is not None:
        arguments = {"count": 0, "seed": 0, **warmup.arguments}
        load_bound(warmup.demonstrations, "model.warmup.demonstrations", arguments, given=0)


def check_model_folder(recipe: Recipe) -> None:
    """Check that a local model folder is complete and consistent, and that its context suffices."""
    if (tiny := recipe.model.tiny) is not None:
        check_heads(recipe, {"num_attention_heads": tiny.heads, "num_key_value_heads": tiny.kv_heads})
        check_context(recipe, tiny.max_position_embeddings)
    if recipe.model.path is None or is_hub_name(recipe.model.path):
        return
    folder = Path(recipe.model.path).expanduser()
    config = read_model_config(folder)
    check_remote_code(folder, config, trusted=recipe.model.trust_remote_code)
    if recipe.model.tower and "vision_config" not in config:
        raise ModelError(f"{folder}: its config.json has no vision_config, so it cannot see; remove model.tower")
    check_context(recipe, context_tokens(config))
    check_heads(recipe, config)
    if recipe.plays and text_config(config).get("dual_chunk_attention_config"):
        raise ModelError(
            f"{folder}: its config.json has dual_chunk_attention_config, which learner and vLLM do not implement; "
            "use another model, or remove it for contexts within its original_max_position_embeddings"
        )
    shapes, rows = tensor_shapes(folder), text_config(config).get("vocab_size")
    if brings_code(folder, config):
        return  # only that code can read its files
    if shapes is not None and recipe.model.loader is None:
        check_dimensions(folder, config, shapes)
        rows = embedding_rows(shapes) or rows
    check_tokenizer(folder)
    check_generation(folder)
    if isinstance(rows, int):
        check_vocabulary(folder, rows)
    if recipe.kind != "offline":  # offline reads recorded tokens
        check_template(folder)


def check_other_models(recipe: Recipe) -> None:
    """Check that a local reward model, reference or teacher, and the start of a critic are model folders. Raises
    `ModelError`."""
    trainer, critic, scorer = recipe.trainer, recipe.trainer.critic, recipe.reward.model_scorer
    named = {
        "reward.model": scorer.model if scorer and recipe.plays else None,
        "trainer.reference_path": trainer.reference_path,
        "trainer.critic.path": critic.path if critic else None,
    }
    for key, name in named.items():
        if name is not None and not is_hub_name(name):
            read_model_config(Path(name).expanduser(), key)


def check_reward_servers(recipe: Recipe) -> None:
    """Check that tokens of servers and judges are set, and that recordings can be used. Raises `UserError`."""
    for scorer in recipe.reward.scorers.values() if recipe.plays else ():
        if scorer.recording:
            check_recording(scorer.recording)
        if server := scorer.remote or scorer.judge:
            token_from(server.token_env if scorer.asks else None)


def check_episodes(recipe: Recipe) -> None:
    """Check that the recorded episodes exist, and that their log-probs are of the distribution that the recipe trains.
    Raises `DataError`, `ConfigError`."""
    if recipe.data.episodes is None:
        return
    recorded = recorded_episodes(recipe.data.episodes).with_name("recipe.yaml")
    sampling = read_yaml(recorded).get("sampling", {}) if recorded.is_file() else {}
    if sampling.get("temperature", recipe.sampling.temperature) != recipe.sampling.temperature:
        raise ConfigError(
            f"sampling.temperature is {recipe.sampling.temperature}, but {recipe.data.episodes} was sampled at "
            f"{sampling['temperature']}: log-probs at different temperatures are not comparable; set the recording's"
        )


def check_players(recipe: Recipe) -> None:
    """Check that the environment or the agent's program, and the tool format, can be imported, and a recording used.
    Raises `UserError`."""
    if (environment := recipe.environment) is not None:
        if environment.recording:
            check_recording(environment.recording)
        if environment.hosted is not None and not environment.is_replayed:
            load_piece(environment.hosted, "environment.environment")
        check_tool_format(environment.tool_format, "environment.tool_format")
    if recipe.agent is not None:
        agent_program(recipe.agent)
        trains_of(recipe.agent.train)
        check_tool_format(recipe.agent.tool_format, "agent.tool_format")


def check_context(recipe: Recipe, context: int | None) -> None:
    """Check that the model's context has room for a reply and `rollout.max_context_tokens`. Raises `ConfigError`."""
    if context is None:
        return
    model = recipe.model.path or "model.tiny (max_position_embeddings)"
    for key, tokens in recipe.reply_limits.items():
        if tokens >= context:
            raise ConfigError(
                f"{key} is {tokens}, but the context of {model} is {context} tokens for prompt and reply; lower it"
            )
    if recipe.rollout.max_context_tokens and recipe.rollout.max_context_tokens > context:
        raise ConfigError(
            f"rollout.max_context_tokens is {recipe.rollout.max_context_tokens}, longer than the context of {model}, "
            f"{context} tokens; lower it"
        )


def check_dataset(config: DatasetConfig, key: str = "data.train", kind: str = "rl") -> None:
    """Check that the files of the local dataset `key` exist, that its first row (of small files every row) makes what a
    `kind` of run learns from, and that a function of tasks accepts its arguments. Raises `DataError`, `ConfigError`."""
    if config.tasks is not None:
        check_tasks(config, key)
    if config.row is not None:
        load_bound(config.row, f"{key}.row", {}, given=1)
    if config.path is None or not (files := local_files(config)):
        return
    is_small = sum(file.stat().st_size for file in files) <= READ_BYTES
    for where, row in islice(read_rows(config), None if is_small else 1):
        if config.holds_pairs:
            pair_from_row(config, row, where)
        elif kind == "sft":
            demonstration_from_row(config, row, where)
        else:
            task_from_row(config, row, "row", where)


def check_few_shot(recipe: Recipe) -> None:
    """Choose the examples of every set, if no rows are on the hub. Raises `DataError`, and `ConfigError` for a kind
    that would not show them."""
    if recipe.is_own_kind and (key := next((key for key, one in recipe.data.sets.items() if one.few_shot), None)):
        raise ConfigError(f"{key}.few_shot is for the built-in kinds; {recipe.kind} makes its prompts itself")
    read = [part for one in recipe.data.sets.values() for part in (one, one.few_shot) if part and part.path]
    for key in () if any(is_hub_name(str(part.path)) for part in read) else recipe.data.sets:
        with_shots(list[Task](), recipe.data, key, recipe.seed)


def is_hub_name(name: str) -> bool:
    """Whether `name` looks like `owner/name` and no such file or folder exists locally."""
    path = Path(name)
    here = path.exists() or (len(path.parts) > 1 and Path(path.parts[0]).is_dir())
    return not here and HUB_NAME.fullmatch(name) is not None


def read_model_config(folder: Path, key: str = "model.path") -> dict[str, Any]:
    """Read the `config.json` of a folder, which `key` names, with a model that generates text. Raises `ModelError`."""
    if folder.is_file():
        raise ModelError(f"{key}={folder} is a file; give the Hugging Face folder that holds the model")
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such model folder; give a Hugging Face folder or a hub name")
    loaded = read_json_object(folder / "config.json")
    if not (folder / "config.json").exists():
        inside = next(iter(sorted(folder.glob("**/huggingface/config.json"))), None)
        hint = f"did you mean {inside.parent}?" if inside else f"{key} must be a Hugging Face folder"
        raise ModelError(f"{folder} is not a model folder: it has no config.json; {held_instead(folder) or hint}")
    if "model_type" not in loaded:
        raise ModelError(f"{folder / 'config.json'} has no model_type; {key} must be a Hugging Face folder")
    check_generates(folder, loaded, key)
    refuse_adapters(folder, key)
    return loaded


def check_heads(recipe: Recipe, config: Values) -> None:
    """Check that an engine's GPUs, and ranks that share rows, can divide the model's heads. Raises `ConfigError`."""
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
    # All get equal numbers of heads, and equal numbers or copies of key/value heads.
    even = [size for size in range(1, heads + 1) if heads % size == 0]
    fitting = [size for size in even if shared % size == 0 or size % shared == 0]
    for key, size in ((key, size) for key, all_sizes in sizes.items() for size in all_sizes):
        if size not in fitting:
            raise ConfigError(
                f"{key} is {size}, but the model has {heads} attention heads and {shared} key/value heads, "
                f"which cannot be split; use one of {', '.join(map(str, fitting))}"
            )
