"""`rlhf reward check` finds hostile replies that a reward accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlhf.apps.checks.named_reward import named_reward, reward_here
from rlhf.apps.checks.program_check import first_tasks, program_check
from rlhf.errors import UserError
from rlhf.reward.adversarial import Quiz, adversarial_replies
from rlhf.reward.reward_interface import LiveReward
from rlhf.types import EpisodeStatus, Message, Scored, Task, Trajectory, Unscored
from rlhf.untrusted_text import escape_to_line

EXAMPLE = Task(id="example", messages=(Message(role="user", content="What is 6 times 7?"),), answer="42")
RIGHT, WRONG = "the right answer", "a wrong answer"


def run_reward_check(
    reward: str,
    overrides: Sequence[str] = (),
    *,
    prompt: str | None = None,
    answer: str | None = None,
    wrong: Sequence[str] = ("41", "43", "24", "67"),
    reply: str = "{answer}",
) -> int:
    """Print the scores of hostile replies, or of hostile programs if unit tests score; return 1 if one is accepted.

    A function of a recipe gets the first training row, of which `prompt` and `answer` may replace a part. A reply is
    accepted if its score is nearer to the right answer's than to a wrong one's; a program if its score is above 0.
    Raises `UserError` for a reward that gives right and wrong answers the same score.
    """
    config = named_reward(reward, overrides)
    if config.kind == "code":
        return program_check(config.code, [task.row for task in first_tasks(reward, overrides)])
    called = any(scorer.kind == "function" for scorer in config.scorers.values())
    task = next(iter(first_tasks(reward, overrides) if called else ()), EXAMPLE)
    prompt = prompt or (task.messages or EXAMPLE.messages)[-1].content
    given = {} if answer is None else {"answer": answer}
    answer = answer or task.answer or str(EXAMPLE.answer)
    row = {"prompt": prompt, "label": answer, "answer": answer, **task.row, **given}
    task = replace(task, messages=(Message(role="user", content=prompt),), answer=answer, row=row)
    quiz = Quiz(prompt=prompt, answer=answer, wrong=tuple(one for one in wrong if one != answer), reply=reply)
    scores = asyncio.run(_scores(reward_here(config), quiz, task))
    middle = halfway(scores)
    above = {name for name, score in scores.items() if isinstance(score, Scored) and score.value > middle}
    accepted = above - {RIGHT, WRONG}
    for name, score in scores.items():
        print(f"{name:<42}{escape_to_line(score_text(score)):<28}{'ACCEPTED' if name in accepted else ''}".rstrip())
    hostile = len(scores) - 2
    print(f"\n{len(accepted)} of {hostile} hostile replies are accepted")
    return 1 if accepted else 0


def halfway(scores: Mapping[str, Scored | Unscored]) -> float:
    """Return the score halfway between the right answer's and a wrong one's."""
    right, wrong = scores[RIGHT], scores[WRONG]
    if isinstance(right, Scored) and isinstance(wrong, Scored) and right.value > wrong.value:
        return (right.value + wrong.value) / 2
    if isinstance(right, Unscored):
        raise UserError(
            f"the reward gives the right answer no number: {right.detail}; if it reads columns of your rows, name a "
            "recipe with rows that have them: rlhf reward check RECIPE"
        )
    raise UserError(
        f"the reward does not distinguish right from wrong: {RIGHT} has {score_text(right)}, {WRONG} has "
        f"{score_text(wrong)}; give the form of an answer with --reply, for instance '#### {{answer}}'"
    )


def score_text(score: Scored | Unscored) -> str:
    """Return the score as text."""
    return f"{score.value:g}" if isinstance(score, Scored) else f"no number ({score.kind})"


async def _scores(reward: LiveReward, quiz: Quiz, task: Task) -> dict[str, Scored | Unscored]:
    """Return the score of every reply to one question, starting with the right answer and a wrong one."""
    replies = {RIGHT: quiz.saying(quiz.answer), WRONG: quiz.saying(quiz.wrong[0]), **adversarial_replies(quiz)}
    done = EpisodeStatus.TERMINATED
    played = [Trajectory(task=task, segments=(), status=done, response=text) for text in replies.values()]
    try:
        await reward.start()
        return dict(zip(replies, await reward(task, played), strict=True))
    finally:
        await reward.close()
