"""Reads trajectories with ATIF's models: `atif_check.py FOLDER`. Prints of each file, by its name, the tokens of its
replies, the calls with their results, and the same of its subagents."""

import json
import sys
from pathlib import Path

from atif import Trajectory


def read(trajectory):
    agent = [step for step in trajectory.steps if step.source == "agent"]
    return {
        "sources": [step.source for step in trajectory.steps],
        "replies": [step.metrics.completion_token_ids for step in agent if step.metrics],
        "prompts": [step.metrics.prompt_token_ids for step in agent if step.metrics],
        "copied": sum(bool(step.is_copied_context) for step in agent),
        "results": [
            [call.tool_call_id, call.function_name, result.content]
            for step in agent
            for call in step.tool_calls or ()
            for result in (step.observation.results if step.observation else ())
            if result.source_call_id == call.tool_call_id
        ],
        "messages": [step.message for step in trajectory.steps],
        "completion_tokens": trajectory.final_metrics.total_completion_tokens,
        "subagents": [read(one) for one in trajectory.subagent_trajectories or ()],
    }


found = {file.stem: read(Trajectory.model_validate_json(file.read_text())) for file in Path(sys.argv[1]).iterdir()}
print(json.dumps(found))
