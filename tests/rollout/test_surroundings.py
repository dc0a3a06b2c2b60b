"""Groups with environments: everyone is asked the same, what breaks is lost by name, and every session is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rlhf.chat.renderer import ChatRenderer
from rlhf.controller.user_messages import OpeningNotices
from rlhf.data.config import EvaluationSetConfig
from rlhf.errors import EnvironmentFailed
from rlhf.models.tiny import byte_tokenizer
from rlhf.protocols import Environment
from rlhf.reward.reward import EnvironmentReward
from rlhf.rollout.dry_run import opening_of
from rlhf.rollout.evaluation import EvaluationFailed, EvaluationSet, evaluate_set
from rlhf.rollout.group import GroupRollout
from rlhf.rollout.turns import WithEnvironment
from rlhf.types import Failed, Group, Message, Observation, Sampling, Scored, Task, Ticket, Trajectory
from tests.env.behaving import Hangs
from tests.env.hosted import hosted
from tests.fakes import FakeEngine, FakeRenderer
from tests.rollout.playing import ScriptedEngine, ScriptedEnvironment, ScriptedEnvironments, rules, says

TICKET = Ticket(ordinal=5, version=3)
TASK = Task(id="seeds/7", messages=())


def ends_with(reward: float) -> Observation:
    return Observation(messages=(), reward=reward, terminated=True)


def sound(session: str) -> Environment:
    return ScriptedEnvironment(says("go"), says("more", reward=0.5), ends_with(1.0))


def rollout(surroundings: WithEnvironment, *, size: int = 3, **changes: object) -> GroupRollout:
    settings = {"sampling": Sampling(max_tokens=4), "max_context_tokens": 64, "run_seed": 1} | changes
    settings = {"engine": FakeEngine()} | settings
    return GroupRollout(
        renderer=FakeRenderer(), reward=EnvironmentReward(), group_size=size, play=surroundings, **settings
    )


def scripted(make: Callable[[str], Environment]) -> tuple[ScriptedEnvironments, WithEnvironment]:
    environments = ScriptedEnvironments(make)
    return environments, WithEnvironment(environments=environments, rules=rules())


async def test_a_group_plays_an_environment_each_all_with_one_seed_and_closes_them() -> None:
    environments, surroundings = scripted(sound)
    group = await rollout(surroundings, greedy_baseline=True)(TASK, TICKET)
    assert isinstance(group, Group)
    assert list(environments.opened) == [f"train-5-{sample}" for sample in range(4)]
    assert len({environment.seeds[0] for environment in environments.opened.values()}) == 1
    assert [environment.closed for environment in environments.opened.values()] == [1] * 4
    assert [sample.score for sample in group.samples] == [
        Scored(value=1.5, parts={"environment": 1.5}, turn_weight=1.0, only_turns=True)
    ] * 3


async def test_the_seed_of_an_environment_is_that_of_run_purpose_and_task() -> None:
    async def seed(task: str, ordinal: int = 0, **changes: object) -> int:
        environments, surroundings = scripted(sound)
        await rollout(surroundings, size=1, **changes)(Task(id=task, messages=()), Ticket(ordinal=ordinal, version=0))
        [environment] = environments.opened.values()
        return environment.seeds[0]

    assert await seed("a") == await seed("a", ordinal=9)
    others = [await seed("b"), await seed("a", run_seed=2), await seed("a", purpose="eval-held_out")]
    assert len({await seed("a"), *others}) == 4
    assert [one % 2 for one in others] == [0, 0, 1], "what is trained and what is held out can be told apart"


@pytest.mark.parametrize("kind", ["raised", "timeout", "lost", "refused", "protocol"])
async def test_an_environment_that_fails_is_lost_by_its_kind_closed_and_never_a_reward(kind: str) -> None:
    def make(session: str) -> Environment:
        if session.endswith("-1"):
            return ScriptedEnvironment(says("go"), EnvironmentFailed("scripted", kind, "why"))
        return sound(session)

    environments, surroundings = scripted(make)
    group = await rollout(surroundings)(TASK, TICKET)
    assert isinstance(group, Group)
    assert [index for index, _, _ in group.trainable] == [0, 2]
    lost = group.samples[1].trajectory
    assert isinstance(lost, Failed)
    assert (lost.kind, lost.detail) == (f"environment_{kind}", f"environment scripted: {kind}: why")
    assert [environment.closed for environment in environments.opened.values()] == [1] * 3


async def test_a_session_that_cannot_be_opened_is_lost_and_the_others_go_on() -> None:
    def make(session: str) -> Environment:
        if session.endswith("-0"):
            raise EnvironmentFailed("scripted", "refused", "no place")
        return sound(session)

    group = await rollout(scripted(make)[1])(TASK, TICKET)
    assert isinstance(group, Group)
    assert isinstance(group.samples[0].trajectory, Failed)
    assert len(group.trainable) == 2


async def test_a_group_that_is_given_up_closes_its_sessions() -> None:
    class Waiting(ScriptedEnvironment):
        async def step(self, action: object) -> Observation:
            await asyncio.sleep(60)
            return says("too late")

    environments, surroundings = scripted(lambda session: Waiting(says("go")))
    playing = asyncio.create_task(rollout(surroundings)(TASK, TICKET))
    while len(environments.opened) < 3:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert [environment.closed for environment in environments.opened.values()] == [1] * 3


@pytest.mark.parametrize(
    ("bad", "kind"),
    [("Raises", "environment_raised"), ("Hangs", "environment_timeout"), ("Late", "environment_timeout")],
)
async def test_hosted_code_that_breaks_is_lost_by_kind_and_the_accounts_balance(bad: str, kind: str) -> None:
    Hangs.release.clear()
    async with hosted("every_other", turn=0.2, arguments={"bad": bad}) as environments:
        surroundings = WithEnvironment(environments=environments, rules=rules(max_turns=2))
        group = await asyncio.wait_for(_freed(rollout(surroundings, size=4)), 30)
    assert isinstance(group, Group)
    assert [isinstance(sample.trajectory, Trajectory) for sample in group.samples].count(True) == 2
    assert [s.trajectory.kind for s in group.samples if isinstance(s.trajectory, Failed)] == [kind, kind]


async def _freed(playing: GroupRollout) -> object:
    """The group, with what hangs let go once it has been given up."""
    asyncio.get_running_loop().call_later(1, Hangs.release.set)
    return await playing(TASK, TICKET)


async def test_an_evaluation_asks_again_what_an_environment_broke_and_nothing_else() -> None:
    asked: list[str] = []

    def make(session: str) -> Environment:
        asked.append(session)
        if asked.count(session) < 3 and session.endswith("-1-0"):
            return ScriptedEnvironment(EnvironmentFailed("scripted", "lost", "its server is gone"))
        return sound(session)

    held_out = EvaluationSet(
        name="held_out",
        config=EvaluationSetConfig(seeds=3),
        tasks=[Task(id=f"seeds/{n}", messages=()) for n in range(3)],
        rollout=rollout(scripted(make)[1], size=1, purpose="eval-held_out"),
    )
    result = await evaluate_set(held_out, version=0)
    assert (result.reward, result.problems) == (1.5, 3)
    assert (result.metrics["turns_mean"], result.metrics["malformed_calls_mean"]) == (2.0, 0.0)
    assert sorted(asked) == [f"eval-held_out-{n}-0" for n in (0, 1, 1, 1, 2)]


async def test_an_evaluation_whose_environment_stays_broken_has_no_number() -> None:
    broken = scripted(lambda session: ScriptedEnvironment(EnvironmentFailed("scripted", "lost", "gone")))[1]
    held_out = EvaluationSet(
        name="held_out", config=EvaluationSetConfig(seeds=1), tasks=[TASK], rollout=rollout(broken, size=1)
    )
    with pytest.raises(EvaluationFailed, match="environment_lost"):
        await evaluate_set(held_out, version=0)


async def test_a_group_whose_members_began_differently_is_told() -> None:
    def numbered(session: str) -> Environment:
        return ScriptedEnvironment(says(f"question {session[-1]}"), ends_with(float(session[-1])))

    for make, told in ((numbered, True), (lambda _: ScriptedEnvironment(says("go"), ends_with(1.0)), False)):
        group = await rollout(scripted(make)[1])(TASK, TICKET)
        assert isinstance(group, Group)
        words: list[str] = []
        notices = OpeningNotices(words.append)
        for version in (1, 2):
            notices.notice(version, [group], {})
        assert len(words) == told
        assert all("task seeds/7 share a seed but began with 3 different observations" in line for line in words)


@pytest.mark.parametrize("when", ["reset", "step"])
async def test_text_that_no_tokenizer_reads_ends_only_its_episode_and_by_name(when: str) -> None:
    half, first = says("half a character: \ud83d"), says("go")

    def one_of_three(session: str) -> Environment:
        broken = (half, ends_with(1.0)) if when == "reset" else (first, half, ends_with(1.0))
        sound = (first, first, ends_with(0.5))
        return ScriptedEnvironment(*(broken if session.endswith("1") else sound))

    renderer = ChatRenderer(byte_tokenizer())
    engine = ScriptedEngine(*[[65]] * 9, stop=renderer.stop_token_ids[0])
    group = await GroupRollout(
        engine=engine, renderer=renderer, reward=EnvironmentReward(), group_size=3, sampling=Sampling(max_tokens=4),
        max_context_tokens=2048, run_seed=1, play=scripted(one_of_three)[1],
    )(TASK, TICKET)  # fmt: skip
    assert isinstance(group, Group)
    assert [sample.failure_kind for sample in group.samples] == [None, "template", None]
    lost = group.samples[1].trajectory
    assert isinstance(lost, Failed)
    assert "a lone surrogate, which no tokenizer reads" in lost.detail


async def test_a_row_that_no_tokenizer_reads_is_lost_by_name() -> None:
    task = Task(id="row 3", messages=(Message(role="user", content="\ud83d"),))
    group = await GroupRollout(
        engine=FakeEngine(), renderer=ChatRenderer(byte_tokenizer()), reward=EnvironmentReward(), group_size=2,
        sampling=Sampling(max_tokens=4), max_context_tokens=64, run_seed=1,
    )(task, TICKET)  # fmt: skip
    assert isinstance(group, Failed)
    assert group.samples[0].failure_kind == "template"


async def test_a_dry_run_shows_what_training_will_ask_and_closes_it() -> None:
    async with hosted("CalculatorEnvironment", module="rlhf.env.tools:", sessions=1) as environments:
        renderer = ChatRenderer(byte_tokenizer(), tools=environments.spec.tools)
        play = WithEnvironment(environments=environments, rules=rules(timeout_seconds=5))
        openings = [
            await opening_of(play, TASK, renderer, run_seed=0, max_context_tokens=100_000)
            for _ in range(2)  # one place: the first was closed
        ]
    assert openings[0] == openings[1]
    told, _, text = str(openings[0]).partition("\n")
    assert text.startswith("<|im_start|>user\n")
    assert text.endswith("<|im_start|>assistant\n")
    assert told == f"prompt of the first episode ({len(byte_tokenizer().encode(text))} tokens):"


@pytest.mark.parametrize(
    ("kind", "times", "plays", "outcome"),
    [
        ("lost", 1, 2, 1.5),
        ("lost", 2, 3, 1.5),
        ("lost", 3, 3, "environment_lost"),
        ("timeout", 1, 1, "environment_timeout"),
    ],
)
async def test_an_episode_whose_environment_is_lost_is_played_again_with_its_seeds_three_times_in_all(
    kind: str, times: int, plays: int, outcome: float | str
) -> None:
    opened: list[ScriptedEnvironment] = []

    def make(session: str) -> Environment:
        last = EnvironmentFailed("scripted", kind, "gone") if len(opened) < times else ends_with(1.0)
        opened.append(ScriptedEnvironment(says("go"), says("more", reward=0.5), last))
        return opened[-1]

    engine = FakeEngine()
    group = await rollout(scripted(make)[1], engine=engine, size=1)(TASK, TICKET)
    assert [environment.closed for environment in opened] == [1] * plays
    assert len({environment.seeds[0] for environment in opened}) == 1
    assert [seed for *_, seed in engine.asked] == [seed for *_, seed in engine.asked[:2]] * plays
    [sample] = group.samples
    assert (sample.score.value if isinstance(sample.score, Scored) else sample.failure_kind) == outcome
