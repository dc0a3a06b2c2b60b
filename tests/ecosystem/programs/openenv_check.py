"""Checks training traces with OpenEnv's own checks: `openenv_check.py FILE`, with a trace in each line. Prints of each
why it was refused, if it was; its findings by level; its roots; and the tokens that are trained."""

import json
import sys
from pathlib import Path

from openenv.core.harness.capture.graph import RolloutGraph, TurnNode
from openenv.core.harness.capture.validate import check_rollout, check_sequence, check_turn
from openenv.core.harness.training import TrainingTrace
from pydantic import ValidationError


def check(line):
    try:
        trace = TrainingTrace.model_validate_json(line)
    except ValidationError as error:
        return {"refused": str(error)}
    graph, reports = RolloutGraph(), []
    for number, turn in enumerate(trace.turns):
        sampled = turn.completion_token_ids, turn.per_token_logps
        reports.append(check_turn(turn.prompt_token_ids, *sampled, index=number))
        graph.add_turn(TurnNode(turn.node_id, turn.prompt_token_ids, *sampled))
    reports += [check_sequence(sequence) for sequence in graph.sequences()]
    reports.append(check_rollout(graph))
    findings = [finding for report in reports for finding in report.findings]
    return {
        "refused": None,
        "fatal": [str(one) for one in findings if one.level == "FATAL"],
        "warned": [one.code for one in findings if one.level == "WARN"],
        "turns": len(trace.turns),
        "roots": len(graph.roots()),
        "trained": sum(sum(turn.loss_mask) for turn in trace.turns),
    }


print(json.dumps([check(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
