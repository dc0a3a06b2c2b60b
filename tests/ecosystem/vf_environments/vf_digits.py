"""An environment in the form of verifiers: one question, one answer, a weighted rubric and a metric."""

import verifiers.v1 as vf

__all__ = ["Digits"]


class DigitsData(vf.TaskData):
    answer: str


class DigitsTask(vf.Task[DigitsData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def ordered(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "") == self.data.answer)

    @vf.reward(weight=0.25)
    async def same_digits(self, trace: vf.Trace) -> float:
        return float(sorted(trace.last_reply or "") == sorted(self.data.answer))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply or ""))


class DigitsConfig(vf.TasksetConfig):
    count: int = 64


class Digits(vf.Taskset[DigitsTask, DigitsConfig]):
    def load(self) -> list[DigitsTask]:
        questions = [f"{71 * n % 90000 + 10000}" for n in range(1, self.config.count + 1)]
        data = [DigitsData(prompt=one, answer="".join(sorted(one))) for one in questions]
        return [DigitsTask(one, self.config.task) for one in data]
