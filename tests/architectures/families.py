"""Tiny models of many families: small enough to be measured in seconds, with the peculiarities of the large ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf.models.tiny import byte_tokenizer
from tests.models.seeing import SHOWN

WINDOW, CONTEXT = 12, 128
SHAPE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": CONTEXT, "initializer_range": 0.05,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
SLIDES = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
MLA = {
    "q_lora_rank": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32,
    "head_dim": 64, "num_key_value_heads": 2,
}  # fmt: skip
"""The kernels of an engine know latents of one size."""
DENSE_FIRST = {"first_k_dense_replace": 1, "n_routed_experts": 4, "n_shared_experts": 1}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
INDEXED = {
    "index_topk": 16, "index_head_dim": 64, "index_n_heads": 2, "mlp_layer_types": ["dense", "sparse"],
    **DENSE_FIRST, **ONE_GROUP, **MLA, **EXPERTS,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A row of the table: `kind` is transformers' name of the family, `settings` what its configuration takes beside
    `SHAPE`. Engine and learner are compared in `dtype`; all else is measured in float32. `gradient` is the limit of its
    gradient, larger where transformers alone rounds more; `plain` the attention of the model that all is compared with.
    One that `sees` is made by `tests.models.seeing`, and measured with images.
    """

    name: str
    kind: str
    attention: str = "auto"
    dtype: str = "float32"
    plain: str = "eager"
    gradient: float = 1e-6
    sees: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def _family(
    name: str,
    kind: str = "",
    attention: str = "auto",
    dtype: str = "float32",
    plain: str = "eager",
    gradient: float = 1e-6,
    **settings: Any,
) -> Family:
    return Family(
        name=name,
        kind=kind or name,
        attention=attention,
        dtype=dtype,
        plain=plain,
        gradient=gradient,
        settings=settings,
    )


FAMILIES = (
    _family("llama"),
    _family("llama-tied", kind="llama", tie_word_embeddings=True),
    _family("llama-rope3", kind="llama", rope_parameters={
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}),
    _family("llama-yarn", kind="llama", rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}),
    _family("mistral", sliding_window=WINDOW),
    _family("ministral", sliding_window=WINDOW, layer_types=SLIDES["layer_types"]),
    _family("qwen2"),
    _family("qwen2-sliding", kind="qwen2", use_sliding_window=True, max_window_layers=1, **SLIDES),
    _family("qwen3"),
    _family("gemma", hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True),
    _family("gemma2", query_pre_attn_scalar=16, final_logit_softcapping=6.0, attn_logit_softcapping=4.0,
            tie_word_embeddings=True, **SLIDES),
    _family("gemma3", kind="gemma3_text", gradient=1e-5, query_pre_attn_scalar=16, tie_word_embeddings=True, **SLIDES),
    _family("phi", partial_rotary_factor=0.5),
    _family("phi3", sliding_window=WINDOW),
    _family("phi3-longrope", kind="phi3", sliding_window=None, original_max_position_embeddings=64, rope_parameters={
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}),
    _family("granite", embedding_multiplier=2.0, attention_multiplier=0.2, residual_multiplier=0.5, logits_scaling=2.0),
    _family("olmo"),
    _family("olmo2"),
    _family("olmo3", **SLIDES),
    _family("smollm3"),
    _family("glm"),
    _family("glm4"),
    _family("stablelm", partial_rotary_factor=0.25),
    _family("gpt_neox", rotary_pct=0.25, use_parallel_residual=True),
    _family("gpt2", n_embd=64, n_layer=2, n_head=2, n_positions=CONTEXT),
    _family("gptj", n_embd=64, n_layer=2, n_head=2, n_positions=CONTEXT, rotary_dim=8),
    _family("gpt_bigcode", n_embd=64, n_layer=2, n_head=2, n_positions=CONTEXT),
    _family("opt", ffn_dim=96, word_embed_proj_dim=64),
    _family("bloom", n_layer=2, n_head=2, tie_word_embeddings=True),
    _family("falcon", new_decoder_architecture=False, multi_query=True, parallel_attn=True),
    # transformers' eager attention adds the biases of ALiBi otherwise than its own SDPA and vLLM.
    _family("falcon-alibi", kind="falcon", plain="sdpa", alibi=True, multi_query=False, parallel_attn=False),
    _family("mpt", d_model=64, n_heads=2, n_layers=2, max_seq_len=CONTEXT, expansion_ratio=2),
    _family("starcoder2", sliding_window=WINDOW),
    _family("cohere", logit_scale=0.5, tie_word_embeddings=True),
    _family("cohere2", logit_scale=0.5, tie_word_embeddings=True, **SLIDES),
    _family("exaone4", **SLIDES),
    _family("nemotron", attention="eager", partial_rotary_factor=0.5),
    _family("helium"),
    _family("arcee"),
    _family("seed_oss"),
    _family("apertus"),
    _family("hunyuan_v1_dense"),
    _family("ernie4_5"),
    _family("persimmon", partial_rotary_factor=0.5),
    _family("codegen", n_embd=64, n_layer=2, num_attention_heads=4, n_positions=CONTEXT, rotary_dim=8),
    _family("mixtral", sliding_window=None, **EXPERTS),
    _family("qwen2_moe", shared_expert_intermediate_size=48, decoder_sparse_step=1, **EXPERTS),
    _family("qwen3_moe", decoder_sparse_step=1, **EXPERTS),
    _family("olmoe", **EXPERTS),
    _family("flex_olmo", **EXPERTS),
    _family("granitemoe", embedding_multiplier=2.0, attention_multiplier=0.2, residual_multiplier=0.5,
            logits_scaling=2.0, **EXPERTS),
    _family("phimoe", sliding_window=None, **EXPERTS),
    _family("deepseek_v2", first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
            topk_method="greedy", **MLA, **EXPERTS),
    _family("deepseek_v3", first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=1, n_group=2, topk_group=1,
            topk_method="noaux_tc", scoring_func="sigmoid", **MLA, **EXPERTS),
    _family("glm4_moe", head_dim=32, first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=1, n_group=1,
            topk_group=1, **EXPERTS),
    _family("dots1", first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
            **EXPERTS),
    _family("ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=0, **EXPERTS),
    _family("hunyuan_v1_moe", moe_topk=2, num_shared_expert=1, **EXPERTS),
    _family("minimax_m2", rotary_dim=16, scoring_func="sigmoid", use_routing_bias=True, **EXPERTS),
    _family("gpt_oss", **SLIDES, **EXPERTS),
    _family("llama4", kind="llama4_text", attention_chunk_size=128, max_position_embeddings=512,
            intermediate_size_mlp=96, interleave_moe_layer_step=1, **EXPERTS | {"num_experts_per_tok": 1}),
    _family("ministral3"),
    _family("granite_swa", **SLIDES),
    _family("granitemoe_swa", **SLIDES, **EXPERTS),
    _family("granitemoeshared", shared_intermediate_size=48, **EXPERTS),
    _family("hyperclovax"),
    _family("hrm_text"),
    _family("hy_v3", qk_norm=True, first_k_dense_replace=1, route_norm=True, expert_hidden_dim=96, **EXPERTS),
    _family("hy_v4", gradient=1e-5, **EXPERTS),
    _family("gemma3n", kind="gemma3n_text", gradient=1e-5, num_hidden_layers=4, num_kv_shared_layers=2,
            hidden_size_per_layer_input=16, vocab_size_per_layer_input=320, laurel_rank=8, sliding_window=WINDOW,
            layer_types=SLIDES["layer_types"] * 2, activation_sparsity_pattern=[0.0] * 4, tie_word_embeddings=True),
    _family("gemma4", kind="gemma4_text", gradient=1e-5, global_head_dim=64, hidden_size_per_layer_input=16,
            vocab_size_per_layer_input=320, tie_word_embeddings=True, **SLIDES),
    _family("cohere2_moe", logit_scale=0.5, tie_word_embeddings=True, **SLIDES, **EXPERTS),
    _family("dbrx", d_model=64, n_heads=2, n_layers=2, max_seq_len=CONTEXT, attn_config={
        "kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 10000.0}, ffn_config={
        "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64}),
    _family("exaone_moe", **SLIDES, **EXPERTS),
    _family("afmoe", score_func="sigmoid", route_norm=True, **ONE_GROUP, **SLIDES, **EXPERTS),
    _family("laguna", **SLIDES, **EXPERTS),
    _family("mimo_v2_flash", **EXPERTS),
    _family("inkling", kind="inkling_text", swa_num_attention_heads=2, swa_num_key_value_heads=1, swa_head_dim=32,
            sliding_window_size=WINDOW, n_shared_experts=1, **{**EXPERTS, "n_routed_experts": 4}),
    _family("minicpm3", **MLA),
    _family("glm4_moe_lite", **DENSE_FIRST, **ONE_GROUP, **MLA, **EXPERTS),
    _family("axk1", rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **DENSE_FIRST, **ONE_GROUP, **MLA,
            **EXPERTS),
    _family("longcat_flash", num_layers=1, ffn_hidden_size=96, expert_ffn_hidden_size=48, n_routed_experts=4,
            zero_expert_num=2, moe_topk=2, mla_scale_q_lora=True, mla_scale_kv_lora=True, zero_expert_type="identity",
            **MLA),
    _family("deepseek_v32", **INDEXED),
    _family("glm_moe_dsa", **INDEXED),
    _family("deepseek_v4"),
    _family("qwen3_next", dtype="bfloat16", **LINEAR, **EXPERTS),
    _family("qwen3_5", kind="qwen3_5_text", dtype="bfloat16", **LINEAR),
    _family("qwen3_5_moe", kind="qwen3_5_moe_text", dtype="bfloat16", **LINEAR, **EXPERTS),
    _family("qwen4_exp", kind="qwen4_exp_text", dtype="bfloat16", shared_expert_intermediate_size=48, **EXPERTS),
    _family("olmo_hybrid", dtype="bfloat16", gradient=1e-5, **LINEAR),
    _family("kimi_linear", dtype="bfloat16", layer_types=LINEAR["layer_types"], linear_head_dim=64, linear_num_heads=2,
            **MLA, **EXPERTS),
    _family("lfm2", block_dim=64, conv_dim=64, conv_dim_out=64, block_ff_dim=96, block_auto_adjust_ff_dim=False,
            layer_types=["conv", "full_attention"]),
    _family("lfm2_moe", layer_types=["conv", "full_attention"], num_dense_layers=1, **EXPERTS),
    _family("mamba", state_size=8),
    _family("mamba2", num_heads=4, head_dim=32, expand=2, n_groups=1, state_size=16),
    _family("falcon_mamba", state_size=8),
    _family("falcon_h1", mamba_d_ssm=128, mamba_n_groups=1, **MAMBA),
    _family("granitemoehybrid", layer_types=["mamba", "attention"], mamba_expand=2, shared_intermediate_size=48,
            **MAMBA, **EXPERTS),
    _family("jamba", attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
            use_mamba_kernels=False, mamba_d_state=8, **EXPERTS),
    _family("nemotron_h"),
    _family("zamba2", num_key_value_heads=2, layers_block_type=["mamba", "hybrid"], mamba_d_state=16, n_mamba_heads=4),
)  # fmt: skip

SEEING = tuple(
    Family(
        name=f"{kind}-images",
        kind=kind,
        sees=True,
        dtype="bfloat16" if kind == "qwen3_5" else "float32",
        gradient=1e-5 if kind == "gemma4" else 1e-6,
    )
    for kind in SHOWN
)
MEASURED = (*FAMILIES, *SEEING)


def made(family: Family, **options: Any) -> PreTrainedModel:
    """A model with random weights, always the same."""
    known = AutoConfig.for_model(family.kind)  # what a family does not know, engines might believe
    shape = {key: value for key, value in SHAPE.items() if key in known.to_dict() or key in known.attribute_map}
    config = AutoConfig.for_model(family.kind, **shape | family.settings)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **options)
    return model


def save(family: Family, folder: Path) -> None:
    """The folder of a made model, every vector of it other than its neighbours."""
    model = made(family)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:  # norms are ones and biases zeros: one could not be told from another
                weight.add_(0.1 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
