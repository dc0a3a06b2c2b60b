"""`rlhf audit` finds what is changed in the records of a run, and nothing in a sound one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhf.commands.audit import run_audit
from rlhf.controller.audit import audit_run
from rlhf.recipe.loading import load_recipe
from rlhf.runs.episode_parts import parts_in, read_episodes, write_part
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.runs.stored_run import read_run
from rlhf.trainer.checkpoint import MANIFEST, checkpoints, checksums
from tests.end_to_end.running import SMALL, train

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
UPDATES = 3
Lie = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sound"
    return train(
        folder, cache, *SMALL, "cluster.kind=local", f"trainer.updates={UPDATES}", "trainer.eval_every=1",
        "data.train.order=learnability", "trainer.replay={groups: 3, max_age: 2}",
    ).folder  # fmt: skip


def faults_of(folder: Path) -> list[str]:
    """The names of the checks that fail."""
    run = read_run(folder)
    return [check.name for check in audit_run(run, load_recipe(run.folder.recipe).recipe) if check.faults]


def rewritten(change: Callable[[list[EpisodeRecord]], list[EpisodeRecord]], number: int = 2) -> Lie:
    """Change the records of one part."""

    def lie(run: Path, folder: str = "episodes") -> None:
        part = parts_in(run / folder)[number - 1]
        write_part(part.parent, number, change(list(read_episodes(part))))

    return lie


def first(**columns: Callable[[EpisodeRecord], object]) -> Lie:
    """Change columns of the first record of a part."""

    def change(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
        changed = {name: of(records[0]) for name, of in columns.items()}
        return [replace(records[0], **changed), *records[1:]]

    return rewritten(change)


def at_first_action(column: str, value: float) -> Lie:
    def changed(record: EpisodeRecord) -> np.ndarray:
        values = getattr(record, column).copy()
        values[np.flatnonzero(record.kinds == 1)[0]] = value
        return values

    return first(**{column: changed})


def under_another_ordinal(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    last = max(record.ordinal for record in records)
    return [*records, *(replace(one, ordinal=last + 1) for one in records if one.ordinal == last)]


def twice(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    return [replace(one, outcome=EpisodeOutcome.TRAINED) if one.outcome == "second_use" else one for one in records]


def of_another_run(records: list[EpisodeRecord]) -> list[EpisodeRecord]:
    return [replace(one, reward=1 - (one.reward or 0), advantage=-(one.advantage or 0)) for one in records]


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


LIES: dict[str, tuple[str, Lie]] = {
    "an episode is dropped": ("fates", rewritten(lambda records: records[1:])),
    "an episode is doubled": ("fates", rewritten(lambda records: [*records, records[0]])),
    "a version is another": ("versions", at_first_action("versions", 0)),
    "a token is another": ("tokens", at_first_action("token_ids", 40)),
    "a log-prob is missing": ("tokens", at_first_action("engine_logprobs", np.nan)),
    "a reward is another": ("metrics", first(reward=lambda record: (record.reward or 0) + 0.5)),
    "a second use is dropped": ("second uses", rewritten(lambda records: records[:-1])),
    "a group is trained twice by mistake": ("fates", rewritten(twice)),
    "an advantage is another": ("advantages", first(advantage=lambda record: (record.advantage or 0) + 0.1)),
    "a trained episode is called filtered": ("updates", first(outcome=lambda _: EpisodeOutcome.FILTERED)),
    "a group has two ordinals": ("updates", rewritten(under_another_ordinal)),
    "a part is of another run": ("metrics", rewritten(of_another_run)),
    "a part is missing": ("parts", lambda run: parts_in(run / "episodes")[1].unlink()),
    "a checkpoint is of another run": ("checkpoints", checkpoint_of_another_run),
    "a bit of a checkpoint is another": ("checkpoints", a_bit_of_the_weights),
    "the summary counts another number": (
        "books", in_json("summary.json", lambda row: row["sample_counts"].update(failed=1)),
    ),
    "an update is missing": ("updates", in_json("metrics.jsonl", lambda row: row.update(update=UPDATES + 1))),
    "an evaluation is another": (
        "evaluations", in_json("metrics.jsonl", lambda row: row.update({"eval/held_out/avg@1": 2})),
    ),
}  # fmt: skip


def test_a_sound_run_passes_every_check(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_audit(sound) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 11
    assert all(line.startswith("ok ") for line in told)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_by_name(sound: Path, tmp_path: Path, lie: str) -> None:
    check, tell = LIES[lie]
    tell(shutil.copytree(sound, tmp_path / "run"))
    assert check in faults_of(tmp_path / "run")
