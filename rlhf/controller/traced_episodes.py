"""Traces of episodes: each class wraps one part of an episode, keeps its protocol, and adds spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlhf.controller.build import Serving
from rlhf.controller.environments import Surroundings
from rlhf.controller.run import Callback, Run
from rlhf.protocols import Environment, Environments, RolloutEngine
from rlhf.reward.live import LiveReward
from rlhf.rollout.episode import EpisodeRunner, PolicyClient
from rlhf.rollout.turns import WithEnvironment
from rlhf.runs.summary import Summary
from rlhf.tracing import CURRENT, CurrentSpan, Traces, trace_worker, traced, within
from rlhf.types import Completion, Failed, Message, Observation, Prompt, Sampling, Scored, Task, Trajectory, Unscored


def with_traces(serving: Serving) -> Serving:
    """Return what plays episodes, with a span for each of their parts where this run exports traces."""
    if CURRENT.get() is None:
        return serving
    around = serving.surroundings
    plays = Surroundings(training=TracedPlay(around.training), evaluation=TracedPlay(around.evaluation))
    return replace(serving, reward=TracedReward(serving.reward), surroundings=plays)


class TracedUpdates(Callback):
    """Makes every update a trace. What precedes the first is a trace, too."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        traces.begin("start")

    async def on_train_begin(self, run: Run) -> None:
        self._next(run)

    async def on_step_end(self, run: Run) -> None:
        self._next(run)

    def on_train_end(self, run: Run, summary: Summary) -> None:
        self._traces.end()

    def _next(self, run: Run) -> None:
        if run.last or run.left:
            self._traces.end()
        else:
            self._traces.begin("update", version=run.version + 1)


class TracedPlay:
    """An `EpisodeRunner` whose replies belong to their episode, also those that an agent asks for over HTTP."""

    def __init__(self, play: EpisodeRunner) -> None:
        self.roles, self.tools = play.roles, play.tools
        if isinstance(play, WithEnvironment):
            play = replace(play, environments=TracedEnvironments(play.environments))
        self._play = play

    async def __call__(self, task: Task, policy: PolicyClient, seed: int) -> tuple[Trajectory | Failed, ...]:
        with traced("episode", task=task.id, session=policy.session):
            engine = TracedEngine(policy.engine, CURRENT.get())
            return await self._play(task, replace(policy, engine=engine), seed)


class TracedEngine:
    """A `RolloutEngine` whose replies are spans, within an episode, and the engine's work on each a span in that."""

    def __init__(self, engine: RolloutEngine, episode: CurrentSpan | None) -> None:
        self._engine, self._episode = engine, episode

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        with within(self._episode), traced("reply", prompt_tokens=len(prompt.token_ids)):
            completion = await self._engine.generate(prompt, sampling=sampling, seed=seed, session=session)
            trace_worker(completion.engine, "generate", completion.began, completion.seconds)
            return completion


class TracedEnvironments:
    """`Environments` whose answers are spans."""

    def __init__(self, environments: Environments) -> None:
        self.spec, self._environments = environments.spec, environments

    async def open(self, session: str) -> Environment:
        return TracedEnvironment(await self._environments.open(session))


class TracedEnvironment:
    """An `Environment` whose answers are spans."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self.close = environment, environment.close

    async def reset(self, task: Task, *, seed: int) -> Observation:
        with traced("environment/reset"):
            return await self._environment.reset(task, seed=seed)

    async def step(self, action: Message) -> Observation:
        with traced("environment/step"):
            return await self._environment.step(action)


class TracedReward:
    """A `LiveReward` whose scores are spans."""

    def __init__(self, reward: LiveReward) -> None:
        self._reward, self.start, self.close = reward, reward.start, reward.close

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        with traced("score", replies=len(trajectories)):
            return await self._reward(task, trajectories)
