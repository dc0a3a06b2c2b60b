"""`rlhf export` copies a checkpoint's model or adapter to a folder, and pushes it to the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rlhf.errors import UserError
from rlhf.runs.model_card import export_model
from rlhf.trainer.checkpoint import ADAPTER, AVERAGE, MODEL, POLICIES, model_folder


def run_export(
    checkpoint: Path,
    output: Path,
    *,
    adapter: bool = False,
    ema: bool = False,
    policy: str | None = None,
    dtype: str | None = None,
    push_to_hub: str | None = None,
) -> int:
    """Copy the exported folder, with a model card. Raises `UserError` when `output` is not empty."""
    if adapter and ema:
        raise UserError("a checkpoint has no average of the adapter alone; --ema without --adapter is the merged model")
    adapter = adapter or policy is not None
    part = f"{POLICIES}/{policy}/{ADAPTER}" if policy else ADAPTER if adapter else AVERAGE if ema else MODEL
    export_model(model_folder(checkpoint, part), output)
    if dtype:
        _cast(output, dtype)
    if not adapter:
        print(f"{output}: load it with transformers, vLLM, or as model.path of a recipe")
    elif base := json.loads((output / "adapter_config.json").read_text())["base_model_name_or_path"]:
        print(f"{output}: an adapter of {base}; load it with peft, or with vLLM's --lora-modules")
    else:
        print(f"{output}: an adapter; its base was made by the recipe and has no name, so peft needs its folder")
    if push_to_hub:
        print(_push(output, push_to_hub))
    return 0


def _cast(folder: Path, dtype: str) -> None:
    """Convert the weights, one file at a time. Raises `UserError` for a number that `dtype` cannot hold."""
    import torch
    from safetensors.torch import load_file, save_file

    target = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    size = 0
    for file in sorted(folder.glob("*.safetensors")):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.dtype in target.values():
                tensors[name] = tensor.to(target[dtype])
                if tensors[name].isinf().any() and not tensor.isinf().any():
                    raise UserError(f"{name} has values that are too large for {dtype}; use --dtype bfloat16")
        size += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, file, metadata={"format": "pt"})
    for index in folder.glob("*.safetensors.index.json"):
        content = json.loads(index.read_text())
        content["metadata"]["total_size"] = size
        index.write_text(json.dumps(content, indent=2))
    for config in folder.glob("config.json"):  # which states it for the whole, and for each part
        config.write_text(re.sub(r'("(?:torch_)?dtype": )"\w+"', rf'\1"{dtype}"', config.read_text()))


def _push(folder: Path, repository: str) -> str:
    """Upload a folder to a repository of the hub, made if missing, and return its address. Raises `UserError`."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        made = HfApi().create_repo(repository, private=True, exist_ok=True)
        HfApi().upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Upload of rlhf export")
    except (OSError, HTTPError, HFValidationError) as error:
        refused = isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403)
        remedy = "log in with `hf auth login` or set HF_TOKEN to a token that may write" if refused else "try again"
        raise UserError(
            f"{folder} is whole, but {repository} was not pushed ({str(error).strip().splitlines()[0]}); {remedy}, "
            f"then: hf upload {repository} {folder}"
        ) from None
    return f"{made}: pushed; a new repository is private until you change it there"
