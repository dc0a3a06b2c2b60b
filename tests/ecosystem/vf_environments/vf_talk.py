"""An environment in the form of verifiers: it has no prompt and no end, and its own user asks twice."""

from collections.abc import Iterator
from itertools import count

import verifiers.v1 as vf

__all__ = ["Talk", "TalkEnv"]


class TalkData(vf.TaskData):
    asked: list[str]


class TalkTask(vf.Task[TalkData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.5)
    async def right(self, trace: vf.Trace) -> float:
        said = [message.content or "" for message in trace.assistant_messages]
        return float(sum(reply == "".join(sorted(one)) for one, reply in zip(self.data.asked, said, strict=True)))


class Talk(vf.Taskset[TalkTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[TalkTask]:
        for n in count(10000):
            yield TalkTask(TalkData(asked=[f"{n}", f"{99999 - n}"]), self.config.task)


class TalkEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for question in task.data.asked:
                if (await interaction.turn(question)).terminated:
                    break
