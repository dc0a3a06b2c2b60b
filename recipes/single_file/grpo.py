"""GRPO in one file: vLLM samples, torch trains, transformers has the model. Read it from top to bottom, then change it.

    python recipes/single_file/grpo.py                 # a minute on two CPU cores; nothing is downloaded
    python recipes/single_file/grpo.py --updates 50 --learning-rate 1e-4 --kl-coefficient 0.01

The task is to sort the digits of a number: `52431=` is continued with `12345.`. A tiny Qwen2 is made here and warmed up
on demonstrations of which 40 % ascend and 60 % descend. So the warm-up is what teaches it to *sort*, with two habits;
the reward never shows an answer, and reinforcement learning makes the rewarded habit the only one.

An update is the straight line of GRPO (arXiv 2402.03300):
    sample     vLLM answers each problem `group_size` times, and says how likely each token was
    reward     1 for the right answer, else 0
    advantage  a reward less its group's mean, in standard deviations: no critic
    learn      PPO's clipped loss (arXiv 1707.06347) with clip-higher and a token-level mean (DAPO, arXiv 2503.14476)
    publish    vLLM gets the new weights, and must prove at the next update that it samples from them

Left out, on purpose; the library (`rlhf`) has it: more than one process, packing and micro-batches (a minibatch is one
padded forward pass), chat templates, checkpoints, rewards that fail or take time, asynchronous sampling, 16-bit
weights. This file has not run on a GPU yet.
"""

import argparse
import copy
import os
import random
import tempfile
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

DIGITS = 5
VOCABULARY = "0123456789=."  # a token is a character; a real model brings its tokenizer, and its prompts their template
STOP = VOCABULARY.index(".")
HELD_OUT = 256
MAX_TOKENS = 8  # of a reply; one that is cut off there is wrong
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run, each with a flag: `--learning-rate 1e-4`."""

    seed: int = 0
    warmup_steps: int = 300  # of 64 demonstrations each
    warmup_learning_rate: float = 3e-3  # decays linearly to 0, as the next one does
    updates: int = 20
    groups: int = 64  # problems an update
    group_size: int = 8  # answers to each of them
    minibatches: int = 2  # optimizer steps an update; from the second one on, ratios are not 1
    learning_rate: float = 3e-4
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coefficient: float = 0.0  # weight of KL(policy, start model) in the loss; 0 holds no start model
    temperature: float = 1.0
    tolerance: float = 1e-4  # most by which a log-prob of vLLM may differ from the learner's


# ---- The task --------------------------------------------------------------------------------------------------------
def problems(seed: int) -> tuple[list[str], list[str]]:
    """All numbers of `DIGITS` digits in random order: the training problems, and the held-out ones."""
    numbers = [f"{number:0{DIGITS}d}" for number in range(10**DIGITS)]
    random.Random(seed).shuffle(numbers)
    return numbers[HELD_OUT:], numbers[:HELD_OUT]


def encode(text: str) -> list[int]:
    return [VOCABULARY.index(character) for character in text]


def answer(problem: str, *, descending: bool = False) -> list[int]:
    return encode("".join(sorted(problem, reverse=descending)) + ".")


def reward(problem: str, reply: list[int]) -> float:
    return float(reply == answer(problem))


# ---- The model -------------------------------------------------------------------------------------------------------
def tiny_model(seed: int) -> nn.Module:
    """Return a Qwen2 of half a million random weights, in float32."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 2}
    rest = {"num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": True}
    tokens = {"vocab_size": 32, "bos_token_id": None, "eos_token_id": STOP}
    return Qwen2ForCausalLM(Qwen2Config(**shape, **rest, **tokens)).to(DEVICE)


def token_logprobs(model: nn.Module, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probs `[B, T - 1]` of the tokens of `ids` `[B, T]` but the first, at the temperature they are sampled with.
    Rows are padded on the right, where nothing looks back at the padding: no attention mask is needed."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1] / temperature
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None])[..., 0]


def warm_up(model: nn.Module, training: list[str], settings: Settings) -> None:
    """Supervised learning on mixed demonstrations, 40 % ascending and 60 % descending; the loss is on answers only."""
    draw = random.Random(settings.seed)
    learner = Learner(model, settings.warmup_learning_rate, settings.warmup_steps)
    for step in range(1, settings.warmup_steps + 1):
        shown = draw.sample(training, 64)
        ids = torch.tensor([encode(p + "=") + answer(p, descending=draw.random() < 0.6) for p in shown], device=DEVICE)
        loss = -token_logprobs(model, ids)[:, DIGITS:].mean()
        learner.step(loss)
        if step % 100 == 0:
            print(f"warm-up {step}/{settings.warmup_steps}  loss {loss.item():.3f}", flush=True)


class Learner:
    """AdamW with a learning rate that decays linearly to 0 over `steps`."""

    def __init__(self, model: nn.Module, learning_rate: float, steps: int) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, total_iters=steps)

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, error_if_nonfinite=True)  # NaN and infinity end the run
        self.optimizer.step()
        self.schedule.step()


# ---- The engine ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sampled reply, with the log-prob of each of its tokens under the policy that sampled it."""

    problem: str
    reply: list[int]
    behaviour_logprobs: list[float]


class Engine:
    """vLLM in this process: answers problems, and takes new weights."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        from vllm import LLM

        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            self.llm = LLM(
                folder,
                skip_tokenizer_init=True,
                generation_config="vllm",  # no setting of the model folder changes the distribution sampled from
                logprobs_mode="processed_logprobs",  # at the temperature of the request, as in `token_logprobs`
                dtype="float32",
                seed=seed,
                enforce_eager=True,
                gpu_memory_utilization=0.05,  # of all memory, be it a GPU's or a CPU's: the learner needs the rest
                kv_cache_memory_bytes=2**26,
                use_tqdm_on_load=False,
            )

    def answer(self, problems: list[str], count: int, temperature: float) -> list[list[Sample]]:
        """`count` replies to every problem; temperature 0 is greedy. All tokens may be sampled: no top-p, no top-k."""
        from vllm import SamplingParams

        ends = {"max_tokens": MAX_TOKENS, "stop_token_ids": [STOP]}
        sampling = SamplingParams(n=count, temperature=temperature, logprobs=0, detokenize=False, **ends)
        outputs = self.llm.generate([{"prompt_token_ids": encode(p + "=")} for p in problems], sampling, use_tqdm=False)
        return [[_sample(p, one) for one in output.outputs] for p, output in zip(problems, outputs, strict=True)]

    def publish(self, model: nn.Module) -> None:
        """Sample from the weights of `model` from now on; nothing computed with older ones is used again."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": model.named_parameters()})
        self.llm.apply_model(_repack_tied_head)
        self.llm.reset_prefix_cache()


def _sample(problem: str, output) -> Sample:
    reply = list(output.token_ids)
    chosen = [at[token].logprob for token, at in zip(reply, output.logprobs, strict=True)]
    return Sample(problem=problem, reply=reply, behaviour_logprobs=chosen)


def _repack_tied_head(model: nn.Module) -> None:
    """Renew vLLM's packed copy of a tied head. On a CPU vLLM multiplies by this copy, and a reload does not renew it,
    so that vLLM would silently sample from the old head."""
    if model.config.tie_word_embeddings:
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


# ---- The mathematics: tensors in, tensors out ------------------------------------------------------------------------
def group_advantages(rewards: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Return the distance of `rewards` `[G, N]` from their group's mean in standard deviations, in float64; exactly 0
    for a group of equal rewards."""
    rewards = rewards.double()
    centred = rewards - rewards.mean(1, keepdim=True)
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    return torch.where(equal, 0.0, centred / (rewards.std(1, keepdim=True) + epsilon))


def ppo_loss(logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor, settings: Settings) -> Tensor:
    """PPO's clipped surrogate, the mean over tokens; all `[A]`. With clip-higher, `clip_high > clip_low`, an unlikely
    token may grow further, which keeps exploration alive."""
    ratio = torch.exp(logprobs - behaviour_logprobs)
    bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -torch.minimum(ratio * advantages, bounded * advantages).mean()


def kl_loss(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return the k3 estimate of KL(policy, reference), a mean over tokens: unbiased and never negative (Schulman)."""
    log_ratio = logprobs - reference_logprobs
    return (torch.expm1(-log_ratio) + log_ratio).mean()


# ---- Learning --------------------------------------------------------------------------------------------------------
def batch_loss(
    policy: nn.Module, reference: nn.Module | None, samples: list[Sample], advantages: Tensor, settings: Settings
) -> tuple[Tensor, float]:
    """Return the loss, and the largest difference between the policy's log-probs and those of the policy that sampled.
    All tokens of a reply share its advantage, `advantages` `[B]`; those of prompts and padding are masked."""
    prompts = [encode(sample.problem + "=") for sample in samples]
    ids = padded([before + sample.reply for before, sample in zip(prompts, samples, strict=True)])
    # Position t is about token t + 1, as in `token_logprobs`.
    sampled = padded([[False] * (len(b) - 1) + [True] * len(s.reply) for b, s in zip(prompts, samples, strict=True)])
    logprobs = token_logprobs(policy, ids, settings.temperature)[sampled]
    old = torch.tensor([logprob for sample in samples for logprob in sample.behaviour_logprobs], device=DEVICE)
    advantages = advantages.float().to(DEVICE)[:, None].expand(sampled.shape)[sampled]
    loss = ppo_loss(logprobs, old, advantages, settings)
    if reference is not None:
        with torch.no_grad():
            reference_logprobs = token_logprobs(reference, ids, settings.temperature)[sampled]
        loss = loss + settings.kl_coefficient * kl_loss(logprobs, reference_logprobs)
    return loss, (logprobs - old).abs().max().item()


def padded(rows: list[list]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(DEVICE)


def evaluate(engine: Engine, held_out: list[str]) -> float:
    """Mean reward of greedy replies."""
    return sum(reward(s.problem, s.reply) for (s,) in engine.answer(held_out, 1, 0.0)) / len(held_out)


def learn(
    learner: Learner, reference: nn.Module | None, groups: list[list[Sample]], advantages: Tensor, settings: Settings
) -> None:
    """Take an optimizer step for each minibatch of whole groups; `advantages` is `[G, N]`. Raises `RuntimeError` when,
    before the first step, the policy's log-probs are not those that vLLM sampled with: it has other weights then."""
    for step, chosen in enumerate(torch.arange(len(groups)).tensor_split(settings.minibatches)):
        samples = [sample for index in chosen for sample in groups[index]]
        loss, difference = batch_loss(learner.model, reference, samples, advantages[chosen].flatten(), settings)
        if step == 0 and not difference <= settings.tolerance:
            raise RuntimeError(f"log-probs of vLLM and the learner differ by {difference:.2g}; see `Engine.publish`")
        learner.step(loss)


def train(settings: Settings) -> tuple[nn.Module, Engine]:
    """Return the whole run; returns the policy, and the engine that samples from it."""
    training, held_out = problems(settings.seed)
    policy = tiny_model(settings.seed)
    warm_up(policy, training, settings)
    reference = copy.deepcopy(policy) if settings.kl_coefficient else None
    engine = Engine(policy, settings.seed)
    start = end = evaluate(engine, held_out)
    print(f"held-out reward {start:.3f} before the first update", flush=True)
    learner = Learner(policy, settings.learning_rate, settings.updates * settings.minibatches)
    draw = random.Random(settings.seed)
    for update in range(1, settings.updates + 1):
        groups = engine.answer(draw.sample(training, settings.groups), settings.group_size, settings.temperature)
        rewards = torch.tensor([[reward(sample.problem, sample.reply) for sample in group] for group in groups])
        learn(learner, reference, groups, group_advantages(rewards), settings)
        engine.publish(policy)
        end = evaluate(engine, held_out)
        print(f"update {update}/{settings.updates}  reward {rewards.mean():.3f}  held-out {end:.3f}", flush=True)
    print(f"held-out reward {start:.3f} -> {end:.3f} on {HELD_OUT} problems")
    return policy, engine


# ---- The command -----------------------------------------------------------------------------------------------------
def prepare_process() -> None:
    """Before transformers and vLLM are imported: the engine in this process; on a CPU one thread and no compiler, which
    takes 10 s for the first token there and saves nothing after."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    if DEVICE == "cpu":
        os.environ |= {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        torch.set_num_threads(1)  # two threads that spin for work make a tiny model ten times slower


def read_settings() -> Settings:
    parser = argparse.ArgumentParser(description="GRPO in one file: a tiny model learns to sort digits.")
    for field in fields(Settings):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=field.type, default=field.default, help=f"default {field.default}")
    settings = Settings(**vars(parser.parse_args()))
    if settings.group_size < 2 or not 1 <= settings.minibatches <= settings.groups or settings.temperature <= 0:
        parser.error("give --group-size 2 or more, --minibatches from 1 to --groups, and a --temperature above 0")
    return settings


if __name__ == "__main__":
    prepare_process()
    train(read_settings())
