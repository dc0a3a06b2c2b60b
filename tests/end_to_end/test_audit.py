"""`rlhf audit` finds what is changed in the records of a run, and nothing in a sound one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from rlhf.apps.audit.audit_run import AuditCheck, audit_run
from rlhf.apps.cli.audit import run_audit
from rlhf.models.tiny import START, byte_tokenizer
from rlhf.recipe.loading import load_recipe
from rlhf.runs.episode_parts import parts_in, read_episodes, write_part
from rlhf.runs.records import PER_TOKEN, EpisodeOutcome, EpisodeRecord
from rlhf.runs.stored_run import read_run
from rlhf.trainer.checkpoint import MANIFEST, checkpoints, checksums
from tests.end_to_end.running import QUICKSTART, SMALL, train

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
UPDATES = 3
Lie = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sound"
    return train(
        folder, cache, *SMALL, "cluster.kind=local", f"trainer.updates={UPDATES}", "trainer.eval_every=1",
        "data.train.order=learnability", "trainer.replay.groups=3", "data.eval.samples=3",
        "data.eval.temperature=1.0", "data.eval.pass_at=[2]", "data.eval.arguments.rows=8",
    ).folder  # fmt: skip


@pytest.fixture(scope="module")
def with_critic(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return sound_run("ppo", tmp_path_factory.mktemp("runs") / "ppo", cache)


def audit_of(folder: Path) -> Iterator[AuditCheck]:
    run = read_run(folder)
    return audit_run(run, [(inf, load_recipe(run.folder.recipe).recipe)])


def finds(check: str, folder: Path) -> bool:
    """Whether this check fails; those after it need not be made."""
    return any(one.name == check and one.faults for one in audit_of(folder))


def rewritten(
    change: Callable[[list[EpisodeRecord]], list[EpisodeRecord]], number: int = 2, folder: str = "episodes"
) -> Lie:
    """Change the records of one part."""

    def lie(run: Path) -> None:
        part = parts_in(run / folder)[number - 1]
        write_part(part.parent, number, change(list(read_episodes(part))))

    return lie


def first(number: int = 2, folder: str = "episodes", **columns: Callable[[EpisodeRecord], object]) -> Lie:
    """Change columns of the first record of a part."""

    def change(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
        changed = {name: of(records[0]) for name, of in columns.items()}
        return [replace(records[0], **changed), *records[1:]]

    return rewritten(change, number, folder)


def evaluated(**columns: Callable[[EpisodeRecord], object]) -> Lie:
    """Change columns of the first record of the last evaluation."""
    return first(UPDATES + 1, "evaluations", **columns)


def at_first_action(column: str, value: float, number: int = 2) -> Lie:
    def changed(record: EpisodeRecord) -> np.ndarray:
        values = getattr(record, column).copy()
        values[np.flatnonzero(record.kinds == 1)[0]] = value
        return values

    return first(number, **{column: changed})


def whole_group(**columns: Callable[[EpisodeRecord], object]) -> Lie:
    """Change columns of a part's first group with a right reply."""

    def change(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
        ordinal = next(one.ordinal for one in records if one.reward)
        changed = [{name: of(one) for name, of in columns.items()} for one in records]
        return [
            replace(one, **new) if one.ordinal == ordinal else one for one, new in zip(records, changed, strict=True)
        ]

    return rewritten(change)


def of_the_last_second_use(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    assert records[-1].outcome is EpisodeOutcome.SECOND_USE
    return [*records[:-1], replace(records[-1], advantage=(records[-1].advantage or 0) + 0.1)]


def prompted(record: EpisodeRecord) -> list[dict[str, str]]:
    return [{**record.prompt[0], "content": record.prompt[0]["content"][::-1] + "0"}]


def under_another_ordinal(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    last = max(record.ordinal for record in records)
    return [*records, *(replace(one, ordinal=last + 1) for one in records if one.ordinal == last)]


def twice(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    return [replace(one, outcome=EpisodeOutcome.TRAINED) if one.outcome == "second_use" else one for one in records]


def of_another_run(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    return [replace(one, reward=1 - (one.reward or 0), advantage=-(one.advantage or 0)) for one in records]


def encoded_otherwise(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    """The mark that begins a prompt is written with the tokens of its letters."""
    one, tokenizer = records[0], byte_tokenizer()
    letters = [tokenizer.encode(letter)[0] for letter in START]
    more = len(letters) - 1
    known = {name: column for name in PER_TOKEN if (column := getattr(one, name)) is not None}
    columns = {name: np.insert(column, 0, [column[0]] * more) for name, column in known.items()}
    columns["token_ids"][: len(letters)] = letters
    turns = [turn | {"start": turn["start"] + more, "stop": turn["stop"] + more} for turn in one.turns or []]
    lengths = [len(columns["token_ids"])]
    return [replace(one, **columns, turns=turns, segment_lengths=lengths), *records[1:]]


def checkpoint_of_another_run(run: Path) -> None:
    path = checkpoints(run / "checkpoints")[-1]
    state = json.loads((path / "trainer_state.json").read_text())
    state["metrics"]["optimizer/grad_norm"] += 0.1
    (path / "trainer_state.json").write_text(json.dumps(state))
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"]["trainer_state.json"] = (path / "trainer_state.json").stat().st_size
    (manifest["checksums"]["trainer_state.json"],) = checksums([path / "trainer_state.json"])
    (path / MANIFEST).write_text(json.dumps(manifest))


def a_bit_of_the_weights(run: Path) -> None:
    file = checkpoints(run / "checkpoints")[-1] / "huggingface" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def in_json(name: str, change: Callable[[dict], object]) -> Lie:  # type: ignore[type-arg]
    """Change the last line of a JSON file."""

    def lie(run: Path) -> None:
        *lines, last = (run / name).read_text().splitlines() if name.endswith("jsonl") else [(run / name).read_text()]
        row = json.loads(last)
        change(row)
        (run / name).write_text("".join(f"{line}\n" for line in [*lines, json.dumps(row)]))

    return lie


def summed(**values: object) -> Lie:
    """Change values of the summary."""
    return in_json("summary.json", lambda row: row.update(values))


def of_the_set(when: str, **values: float) -> Lie:
    return in_json("summary.json", lambda row: row["evaluations"]["held_out"][when].update(values))


def measured(line: int = UPDATES, **values: float | None) -> Lie:
    """Change the metrics of an update; None is left out. `__` is written for `/`, `AT` for `@`."""

    def lie(run: Path) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        named = {name.replace("__", "/").replace("AT", "@"): value for name, value in values.items()}
        row = json.loads(lines[line - 1])
        assert named.keys() <= row.keys()
        kept = {name: value for name, value in (row | named).items() if value is not None}
        lines[line - 1] = json.dumps(kept)
        (run / "metrics.jsonl").write_text("".join(f"{one}\n" for one in lines))

    return lie


def without_evaluation(run: Path) -> None:
    in_json("metrics.jsonl", lambda row: [row.pop(name) for name in [*row] if name.startswith("eval/")])(run)
    parts_in(run / "evaluations")[-1].unlink()


LIES: dict[str, tuple[str, Lie]] = {
    "an episode is dropped": ("fates", rewritten(lambda records: records[1:])),
    "an episode is doubled": ("fates", rewritten(lambda records: [*records, records[0]])),
    "a version is another": ("tokens", at_first_action("versions", 0)),
    "a group was admitted later than it was played": ("tokens", first(admitted_version=lambda _: 2)),
    "a token is another": ("tokens", at_first_action("token_ids", 40)),
    "a token is the policy's": ("tokens", first(kinds=lambda record: np.ones_like(record.kinds))),
    "a prompt is encoded otherwise": ("tokens", rewritten(encoded_otherwise)),
    "a reply is credited twice": ("tokens", first(turns=lambda one: [*one.turns, *one.turns])),
    "a log-prob is missing": ("tokens", at_first_action("behaviour_logprobs", np.nan)),
    "a learner's log-prob is another": ("metrics", at_first_action("proximal_logprobs", -9.0, 1)),
    "an entropy is another": ("metrics", at_first_action("entropies", 2.5, 1)),
    "a reply is another": ("tokens", first(response=lambda _: "98765")),
    "a reply is the answer": ("tokens", first(response=lambda record: record.answer, reward=lambda _: 1.0)),
    "a prompt is another": ("tokens", first(prompt=prompted)),
    "the prompts of a group are others": ("tokens", whole_group(prompt=prompted)),
    "an answer is another": ("tokens", first(answer=lambda _: "1")),
    "a status and its turn are others": (
        "metrics",
        first(status=lambda _: "truncated", turns=lambda one: [{**turn, "truncated": True} for turn in one.turns]),
    ),
    "a reward is another": ("tokens", first(reward=lambda record: (record.reward or 0) + 0.5)),
    "a second use is dropped": ("second uses", rewritten(lambda records: records[:-1])),
    "a second use has another advantage": ("advantages", rewritten(of_the_last_second_use)),
    "a group is trained twice by mistake": ("fates", rewritten(twice)),
    "an advantage is another": ("advantages", first(advantage=lambda record: (record.advantage or 0) + 0.1)),
    "a trained episode is called filtered": ("fates", first(outcome=lambda _: EpisodeOutcome.FILTERED)),
    "an episode is of another update": ("metrics", first(update=lambda _: 3)),
    "a group has two ordinals": ("metrics", rewritten(under_another_ordinal)),
    "a part is of another run": ("metrics", rewritten(of_another_run)),
    "a part is missing": ("parts", lambda run: parts_in(run / "episodes")[1].unlink()),
    "a checkpoint is of another run": ("checkpoints", checkpoint_of_another_run),
    "a bit of a checkpoint is another": ("checkpoints", a_bit_of_the_weights),
    "the summary counts another number": (
        "summary", in_json("summary.json", lambda row: row["sample_counts"].update(failed=1)),
    ),
    "the summary has another start": ("summary", summed(eval_reward_start=0.05)),
    "the summary has another end of a set": ("summary", of_the_set("end", **{"avg@3": 0.99})),
    "the summary has more problems": ("summary", summed(eval_problems=800)),
    "the summary has other second uses": ("summary", summed(second_uses=0)),
    "the summary is of another run": ("summary", summed(name="another")),
    "a finished run was saved": ("summary", summed(outcome="saved: SIGTERM")),
    "a run with more updates has finished": (
        "summary",
        lambda run: (run / "recipe.yaml").write_text(
            (run / "recipe.yaml").read_text().replace(f"  updates: {UPDATES} ", "  updates: 9 ")
        ),
    ),
    "an update is missing": ("updates", in_json("metrics.jsonl", lambda row: row.update(update=UPDATES + 1))),
    "a mean reward is another": ("metrics", measured(reward__mean=0.99)),
    "a reward is missing": ("metrics", measured(reward__mean=None)),
    "an update's entropy is another": ("metrics", measured(1, policy__entropy=2.0)),
    "an evaluation is another": ("evaluations", measured(eval__held_out__avgAT3=2)),
    "an evaluation's reward is another": ("evaluations", measured(eval__reward=0.99)),
    "an evaluation has no episodes": ("evaluations", lambda run: parts_in(run / "evaluations")[-1].unlink()),
    "the last evaluation never was": ("evaluations", without_evaluation),
    "an evaluated reward is another": ("evaluations", evaluated(reward=lambda one: 1 - (one.reward or 0))),
    "an evaluated reply is another": ("evaluations", evaluated(response=lambda _: "98765")),
    "an evaluated problem is missing": ("evaluations", rewritten(lambda records: records[3:], 4, "evaluations")),
}  # fmt: skip
LIES_WITH_A_CRITIC: dict[str, tuple[str, Lie]] = {
    "an advantage is another": ("tokens", first(3, advantage=lambda one: (one.advantage or 0) + 0.1)),
    "a token's advantage is another": ("tokens", at_first_action("advantages", 3.0, 3)),
    "a log-prob of the learner is missing": ("tokens", at_first_action("proximal_logprobs", np.nan, 3)),
}
"""Those of single tokens that keep the mean cannot be known: no record has a critic's values."""


def sound_run(name: str, folder: Path, cache: Path) -> Path:
    kind, *overrides = SOUND[name]
    recipe = QUICKSTART.with_name(f"{kind}.yaml")
    small = SMALL if kind == "quickstart" else ()
    return train(folder, cache, *small, "cluster.kind=local", "trainer.updates=3", *overrides, recipe=recipe).folder


SOUND = {
    "ppo": ("quickstart", "trainer.algorithm=ppo", "trainer.critic.warmup_updates=2", "trainer.ema_decay=0.9"),
    "kl.stop": ("quickstart", "trainer.kl.stop=1e-7", "trainer.minibatches=4"),
    "asynchronous": ("quickstart", "trainer.max_staleness=2", "trainer.minibatches=2"),
    "filtered": ("quickstart", "trainer.filter.equal_rewards=true"),
    "lost": (
        "quickstart", "reward.kind=function", "reward.function=tests.end_to_end.rewards:moody", "data.eval=null",
        "trainer.failure_budget=1",
    ),
    "remax": ("quickstart", "trainer.algorithm=remax"),
    "several turns": (
        "tool_calculator", "model.warmup.updates=150", "trainer.groups_per_update=4", "trainer.group_size=4",
        "data.eval.seeds=16",
    ),
    "self-play": (
        "tictactoe_selfplay", "model.warmup.updates=60", "trainer.groups_per_update=4", "trainer.group_size=4",
        "data.eval.seeds=16",
    ),
    "preference": ("dpo", "trainer.groups_per_update=8", "trainer.eval_every=2", "data.eval.arguments.rows=32"),
    "sft": (
        "quickstart", "kind=sft", "data.train.tasks=recipes.tasks.sorting:demonstrated",
        "data.train.response_column=response", "data.train.arguments={rows: 64}", "data.eval=null", "reward.kind=none",
    ),
}  # fmt: skip
"""Runs of all kinds."""


def test_a_sound_run_passes_every_check(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_audit(sound) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 10
    assert all(line.startswith("ok ") for line in told)


def test_a_run_with_a_critic_passes_though_the_policy_waits_for_it(with_critic: Path) -> None:
    assert run_audit(with_critic) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SOUND if name != "ppo"])
def test_a_sound_run_of_any_kind_passes(tmp_path: Path, cache: Path, name: str) -> None:
    assert run_audit(sound_run(name, tmp_path / "run", cache)) == 0


@pytest.mark.slow
def test_a_run_that_learned_offline_passes(sound: Path, tmp_path: Path, cache: Path) -> None:
    offline = ("kind=offline", "data.train=null", "data.eval=null", f"data.episodes={sound}")
    assert (
        run_audit(
            train(tmp_path / "run", cache, *SMALL[:3], "trainer.updates=2", "cluster.kind=local", *offline).folder
        )
        == 0
    )


@pytest.mark.slow
def test_a_resumed_run_is_held_against_the_recipes_of_its_updates(tmp_path: Path, cache: Path) -> None:
    options = (*SMALL, "cluster.kind=local", "trainer.updates=3")
    train(tmp_path / "run", cache, *options, "trainer.max_staleness=2", "trainer.minibatches=2")
    changed = ("trainer.updates=5", "trainer.group_size=6", "trainer.advantage.normalize_by_std=false")
    assert run_audit(train(tmp_path / "run", cache, *options, *changed, "--resume").folder) == 0


def test_an_end_token_that_is_added_and_not_special_is_no_lie(sound: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sound, tmp_path / "run")
    in_json(
        "tokenizer/tokenizer.json", lambda one: [token.update(special=False) for token in one["added_tokens"]]
    )(run)  # fmt: skip
    assert run_audit(run) == 0


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_by_name(sound: Path, tmp_path: Path, lie: str) -> None:
    check, tell = LIES[lie]
    tell(shutil.copytree(sound, tmp_path / "run"))
    assert finds(check, tmp_path / "run")


@pytest.mark.parametrize("lie", LIES_WITH_A_CRITIC)
def test_a_lie_about_a_run_with_a_critic_is_found_by_name(with_critic: Path, tmp_path: Path, lie: str) -> None:
    check, tell = LIES_WITH_A_CRITIC[lie]
    tell(shutil.copytree(with_critic, tmp_path / "run"))
    assert finds(check, tmp_path / "run")
