"""An environment in the form of verifiers: a server of tools for each episode."""

import verifiers.v1 as vf

__all__ = ["Desk"]


class DeskTools(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "desk"

    @vf.tool
    async def ordered(self, digits: str) -> str:
        """Put digits in ascending order."""
        return "".join(sorted(digits))


class DeskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class DeskTask(vf.Task[vf.TaskData, vf.State, DeskConfig]):
    @classmethod
    def toolsets(cls, config: DeskConfig) -> list[vf.Toolset]:
        return [DeskTools(config.tools)]

    @vf.reward
    async def tools_told(self, trace: vf.Trace) -> float:
        return float(any(message.role == "tool" for message in trace.messages))

    @vf.metric
    async def offered(self, trace: vf.Trace) -> float:
        return float(len(trace.tools or []))


class DeskTasksetConfig(vf.TasksetConfig):
    task: DeskConfig = DeskConfig()


class Desk(vf.Taskset[DeskTask, DeskTasksetConfig]):
    def load(self) -> list[DeskTask]:
        return [DeskTask(vf.TaskData(prompt=f"{n}"), self.config.task) for n in range(10000, 10064)]


if __name__ == "__main__":
    DeskTools.run()
