"""One policy in several roles of an episode: each sees its own part, and is paid and compared on its own."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerBase

from recipes.tasks.tictactoe import ROLES, TicTacToeEnvironment
from rlhf.chat.renderer import ChatRenderer
from rlhf.errors import ConfigError, EnvironmentFailed
from rlhf.models.tiny import byte_tokenizer
from rlhf.reward.reward import EnvironmentReward
from rlhf.rollout.group import GroupRollout
from rlhf.rollout.turns import WithEnvironment, play
from rlhf.trainer.batching.batch import build_batch
from rlhf.trainer.credit.statistics import reward_statistics
from rlhf.types import (
    EpisodeStatus,
    Failed,
    Filtered,
    Group,
    Message,
    Observation,
    Sampling,
    Scored,
    Task,
    Ticket,
    Trajectory,
)  # fmt: skip
from tests.rollout.playing import TASK, ScriptedEngine, ScriptedEnvironment, ScriptedEnvironments, policy, rules

BOTH = ("x", "o")
TICKET = Ticket(ordinal=0, version=0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


def engine(tokenizer: PreTrainedTokenizerBase, *replies: str) -> ScriptedEngine:
    said = [list(tokenizer.encode(reply, add_special_tokens=False)) for reply in replies]
    return ScriptedEngine(*said, stop=tokenizer.eos_token_id)


def over(rewards: object, **outcome: object) -> Observation:
    return Observation(messages=(), terminated=True, role="x", info={"rewards": rewards}, **outcome)


def texts(tokenizer: PreTrainedTokenizerBase, trajectory: Trajectory) -> list[str]:
    return [tokenizer.decode(segment.token_ids) for segment in trajectory.segments]


async def test_each_role_has_a_trajectory_of_what_it_saw_and_said(tokenizer: PreTrainedTokenizerBase) -> None:
    first = Observation(messages=(Message(role="user", content="to x"),), role="x")
    environment = ScriptedEnvironment(
        first,
        Observation(messages=(Message(role="user", content="to o"),), role="o", reward=0.25),
        Observation(messages=(Message(role="user", content="x again"),), role="x"),
        over({"x": 1.0, "o": -1.0}, reward=0.5),
    )
    said = engine(tokenizer, "a", "b", "c")
    its = policy(said, tokenizer, policy_of={"x": "solver", "o": "other"}.__getitem__)
    x, o = await play(TASK, its, environment, seed=3, rules=rules(roles=BOTH))
    assert said.policies == ["solver", "other", "solver"]
    assert isinstance(x, Trajectory)
    assert isinstance(o, Trajectory)
    assert texts(tokenizer, x) == [
        "<|im_start|>user\nto x<|im_end|>\n<|im_start|>assistant\na<|im_end|>"
        "\n<|im_start|>user\nx again<|im_end|>\n<|im_start|>assistant\nc<|im_end|>"
    ]
    assert texts(tokenizer, o) == ["<|im_start|>user\nto o<|im_end|>\n<|im_start|>assistant\nb<|im_end|>"]
    assert [turn.reward for turn in x.segments[0].turns] == [0.25, 1.5], "a move's own reward, and the game's"
    assert [turn.reward for turn in o.segments[0].turns] == [-1.0]
    assert x.segments[0].turns[-1].terminated
    assert o.segments[0].turns[-1].terminated, "the end of the game is the end for both"
    assert (x.role, o.role, x.status, o.status) == ("x", "o", EpisodeStatus.TERMINATED, EpisodeStatus.TERMINATED)
    assert (x.policy, o.policy) == ("solver", "other")
    assert [seed for _, _, seed, _ in said.asked] == [100, 101, 102], "no two replies share their draws"
    assert [message.content for message in o.conversation] == ["to o", "b"]


async def test_a_role_whose_turn_never_came_is_failed(tokenizer: PreTrainedTokenizerBase) -> None:
    opening = Observation(messages=(Message(role="user", content="to x"),), role="x")
    environment = ScriptedEnvironment(opening, over({"x": -1.0, "o": 1.0}))
    x, o = await play(TASK, policy(engine(tokenizer, "bad"), tokenizer), environment, seed=0, rules=rules(roles=BOTH))
    assert isinstance(x, Trajectory)
    assert isinstance(o, Failed)
    assert (o.kind, "turn of o" in o.detail) == ("never_acted", True)
    cut = policy(engine(tokenizer, "bad"), tokenizer, sampling=Sampling(max_tokens=2))
    _, o = await play(TASK, cut, ScriptedEnvironment(opening), seed=0, rules=rules(roles=BOTH))
    assert isinstance(o, Failed)
    assert (o.kind, "a reply reached sampling.max_tokens" in o.detail) == ("cut_off", True)


@pytest.mark.parametrize(
    ("heard", "words"),
    [
        (Observation(messages=(Message(role="user", content="?"),), role="z"), "the turn to 'z'"),
        (over({"x": float("nan")}), "not a number"),
        (over({"x": 10**400}), "not a number"),
        (over([1.0, -1.0]), "not a mapping from role to reward"),
    ],
)
async def test_nonsense_about_roles_is_the_environments_failure(
    tokenizer: PreTrainedTokenizerBase, heard: Observation, words: str
) -> None:
    opening = Observation(messages=(Message(role="user", content="to x"),), role="x")
    its = policy(engine(tokenizer, "a", "b"), tokenizer)
    with pytest.raises(EnvironmentFailed, match=words):
        await play(TASK, its, ScriptedEnvironment(opening, heard), seed=0, rules=rules(roles=BOTH))


async def test_a_cut_episode_is_truncated_for_every_role(tokenizer: PreTrainedTokenizerBase) -> None:
    turns = [Observation(messages=(Message(role="user", content=f"to {r}"),), role=r) for r in "xoxoxox"]
    its = policy(engine(tokenizer, *"abcd"), tokenizer)
    x, o = await play(TASK, its, ScriptedEnvironment(*turns), seed=0, rules=rules(roles=BOTH, max_turns=2))
    for one in (x, o):
        assert isinstance(one, Trajectory)
        assert one.status is EpisodeStatus.TRUNCATED
        assert [turn.truncated for turn in one.segments[0].turns] == [False, True]


class Mover:
    """Plays tic-tac-toe: the first free square, or in every `wild`-th reply the last one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, wild: int) -> None:
        self._tokenizer, self._wild, self._asked = tokenizer, wild, 0

    async def generate(self, prompt: object, *, sampling: Sampling, seed: int, session: str) -> object:
        board = self._tokenizer.decode(prompt.token_ids).split("user\n")[-1].split("<|im_end|>")[0]
        self._asked += 1
        free = [square for square in board if square.isdigit()]
        one = engine(self._tokenizer, free[-1] if self._asked % self._wild == 0 else free[0])
        return await one.generate(prompt, sampling=sampling, seed=seed, session=session)


class Hosted:
    """The environment itself, without a thread."""

    def __init__(self) -> None:
        self._game = TicTacToeEnvironment()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return self._game.reset(task, seed=seed)

    async def step(self, action: Message) -> Observation:
        return self._game.step(action)

    async def close(self) -> None:
        self._game.close()


def group_rollout(tokenizer: PreTrainedTokenizerBase, wild: int, **changes: object) -> GroupRollout:
    environments = ScriptedEnvironments(lambda session: Hosted())
    game_rules = rules(roles=ROLES, max_turns=9, last_turns=0)
    settings = {
        "engine": Mover(tokenizer, wild),
        "renderer": ChatRenderer(tokenizer),
        "reward": EnvironmentReward(),
        "sampling": Sampling(max_tokens=8),
        "group_size": 4,
        "max_context_tokens": 256,
        "run_seed": 0,
        "play": WithEnvironment(environments=environments, rules=game_rules),
    } | changes
    return GroupRollout(**settings)


async def test_self_play_gives_a_sample_for_every_role_and_a_baseline_for_each(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rollout = group_rollout(tokenizer, wild=3)
    group = await rollout(TASK, TICKET)
    assert isinstance(group, Group)
    assert rollout.samples == len(group.samples) == 8
    roles = [trajectory.role for _, trajectory, _ in group.trainable]
    rewards = [score.value for _, _, score in group.trainable]
    assert roles == [*ROLES] * 4
    assert all(first == -second for first, second in zip(rewards[::2], rewards[1::2], strict=True)), "zero-sum"
    batch = build_batch([group])
    assert batch.groups.tolist() == [0, 1] * 4, "compared with its own role only"
    assert batch.outcomes.tolist() == rewards
    told = reward_statistics([group])
    assert told["reward/mean"] == 0
    assert told["reward/first"] == -told["reward/second"] == sum(rewards[::2]) / 4
    for _, trajectory, _ in group.trainable:
        assert all(len(segment.turns) == 1 for segment in trajectory.segments), "last_n 0: a context a turn"


async def test_games_that_all_end_alike_teach_nothing_and_are_filtered(tokenizer: PreTrainedTokenizerBase) -> None:
    rollout = group_rollout(tokenizer, wild=10**9, filter_equal_rewards=True)
    filtered = await rollout(TASK, TICKET)
    assert isinstance(filtered, Filtered), "1 and -1 in every game: each role has nothing to compare"
    values = {score.value for sample in filtered.group.samples if isinstance(score := sample.score, Scored)}
    assert values == {1.0, -1.0}


async def test_a_greedy_baseline_of_several_roles_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ConfigError, match="one role"):
        group_rollout(tokenizer, wild=3, greedy_baseline=True)
