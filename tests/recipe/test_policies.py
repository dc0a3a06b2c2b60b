"""Several policies in a recipe: each is trained by its own settings, and each fault is one line."""

from __future__ import annotations

import re

import pytest

from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.policies import PolicyConfig, assignment, check_roles
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import engine_sizes
from rlhf.types import Task
from tests.end_to_end.running import ROOT

BOTH = "{first: proposer, second: solver}"


def recipe(*overrides: str) -> Recipe:
    return load_recipe(ROOT / "recipes" / "tictactoe_selfplay.yaml", overrides).recipe


def test_a_policy_is_trained_by_its_own_settings_over_the_recipe_s() -> None:
    loss = "{clip_high: 0.3, aggregation: sequence_mean}"
    its = f"{{lora: {{rank: 4}}, trainer: {{optimizer: {{learning_rate: 1e-5}}, loss: {loss}}}}}"
    whole = recipe(f"policies={{proposer: {{lora: {{rank: 8}}}}, solver: {its}}}", f"roles={BOTH}")
    proposer, solver = whole.of_policy("proposer"), whole.of_policy("solver")
    assert proposer.trainer == whole.trainer
    assert (proposer.model.lora.rank, solver.model.lora.rank) == (8, 4)
    assert solver.model.publishes_adapters
    assert (solver.trainer.optimizer.learning_rate, solver.trainer.loss.clip_high) == (1e-5, 0.3)
    assert solver.trainer.loss.aggregation == "sequence_mean"
    assert solver.trainer.updates == whole.trainer.updates
    assert whole.of_policy("") is whole


FAULTS = {
    "{proposer: {}, solver: {}}": "policies.solver plays no role",
    "{proposer: {trained: false}}": "no policy is trained",
    "{proposer: {}, solver: {trained: false, trainer: {epochs: 2}}}": "policies.solver is not trained, but has trainer",
    "{proposer: {trainer: {updates: 3}}}": "policies.proposer.trainer.updates is not a setting of one policy",
    "{proposer: {trainer: {optimiser: {}}}}": "did you mean 'optimizer'",
    "{proposer: {trainer: {optimizer: {learning_rate: x}}}}": "policies.proposer: trainer.optimizer.learning_rate",
    "{proposer: {trainer: {advantage: {estimator: remax}}}}": "a greedy baseline (remax) is for one policy",
    "{reward: {}}": "policies.reward: metrics are called reward/…; choose another name",
    "{Proposer: {}}": "policies.Proposer: a name has lower-case letters",
    "{proposer: {lora: {target_modules: [q_proj]}}, solver: {}}": "policies differ in lora.target_modules",
    "{proposer: {trainer: {algorithm: dapo}}}": "policies.proposer.trainer.algorithm is not a setting of one policy",
    "{proposer: {trainer: {kl: {stop: 0.1}}}}": "set trainer.kl.stop, for all of them",
    "{proposer: {model: {path: a/b}}}": "each of policies has a model of its own; leave out that of one",
    "{proposer: {}, solver: {model: {path: a/b, lora: {}}}}": "policies.solver.model.lora: set policies.solver.lora",
    "{proposer: {}, solver: {model: {path: a/b, dtype: bfloat16}}}": "policies.solver.model.dtype is bfloat16, but",
    "{proposer: {rank: 3}}": "unknown key 'policies.proposer.rank'",
}


@pytest.mark.parametrize(("policies", "said"), FAULTS.items())
def test_a_fault_is_one_line(policies: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        recipe(f"policies={policies}", "roles={first: proposer, second: proposer}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("roles={first: sovler}", "roles.first is 'sovler'; did you mean 'solver'?"),
        ("roles=solver", "roles is 'solver'; give module:function"),
        ("policies={}", "roles are played by policies"),
        ("model.lora={}", "policies do not go with model.lora"),
        ("cluster.placement=colocated", "colocated"),
        ("kind=sft", "kind: sft"),
        ("trainer.replay.groups=2", "trainer.replay"),
        ("data.train.order=learnability", "order: learnability"),
        ("league={policy: solver}", "roles are given by the league; remove roles, or league"),
    ],
)
def test_what_policies_do_not_go_with_is_named(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        recipe("policies={solver: {}}", "roles={first: solver, second: solver}", override)


@pytest.mark.parametrize(
    ("league", "said"),
    [
        ("{policy: sovler}", "league.policy is 'sovler'; did you mean 'solver'?"),
        ("{policy: old}", "league.policy is 'old'; the policies that are trained: solver"),
        (
            "{policy: solver, match: hardest}",
            "league.match is 'hardest'; give uniform, by_win_rate, or module:function",
        ),
        ("{policy: solver, members: 0}", "league.members"),
        ("{members: 3}", "league.policy"),
    ],
)
def test_a_fault_of_a_league_is_one_line(league: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        recipe("policies={solver: {lora: {rank: 4}}, old: {trained: false}}", f"league={league}")


def test_a_league_counts_all_games() -> None:
    with pytest.raises(ConfigError, match="drops games that the league must count"):
        recipe("policies={solver: {}}", "league={policy: solver}", "trainer.filter.equal_rewards=true")


def test_the_members_of_a_league_are_policies_like_its_own() -> None:
    whole = recipe("policies={solver: {lora: {rank: 4}, trainer: {epochs: 2}}}", "league={policy: solver, members: 2}")
    assert list(whole.all_policies) == ["solver", "solver_past_1", "solver_past_2"]
    assert whole.trained_policies == ("solver",)
    assert whole.of_policy("solver_past_2").model.lora == whole.of_policy("solver").model.lora


def test_policies_with_equal_models_share_it() -> None:
    own = "{model: {path: a/b}}"
    whole = recipe(f"policies={{one: {{}}, two: {own}, three: {own}}}", "roles={first: one, second: two, third: three}")
    assert whole.bases == {"": ("one",), "two": ("two", "three")}
    assert whole.of_base("two").model.path == whole.of_policy("three").model.path == "a/b"
    assert list(engine_sizes(whole)) == ["engine", "engine-two"]
    with pytest.raises(ConfigError, match=r"engines of their own; use cluster\.kind=ray"):
        recipe(f"policies={{one: {{}}, two: {own}}}", "roles={first: one, second: two}", "cluster.kind=local")


def test_a_function_names_the_policy_of_a_role() -> None:
    assigned = assignment(("a", "b"), f"{__name__}:by_turns")
    task = Task(id="t", messages=())
    assert [assigned("x", task, ordinal) for ordinal in range(2)] == ["a", "b"]
    with pytest.raises(ConfigError, match="roles gives x to 'c'; the policies are a, b"):
        assigned("x", task, 2)
    assert assignment((), {})("x", task, 0) == ""


def by_turns(role: str, task: Task, ordinal: int) -> str:
    return "abc"[ordinal]


def test_a_loss_of_its_own_needs_samples_that_need_no_correction() -> None:
    own = ("policies={solver: {trainer: {loss: {policy: gspo}}}}", "roles={first: solver, second: solver}")
    assert recipe(*own).of_policy("solver").trainer.loss.policy == "gspo"
    with pytest.raises(ConfigError, match="from which the correction"):
        recipe(*own, "trainer.max_staleness=2")


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"x": "a", "agent": "b"}, "roles names no policy for o"),
        (
            {"x": "a", "o": "b", "agent": "a", "sceond": "a"},
            "roles.sceond is no role of the environment, which has agent, o, x",
        ),
        ({"x": "a", "o": "a", "agent": "b"}, "policies.b is trained, but its roles are of evaluations alone"),
    ],
)
def test_the_roles_are_those_of_the_environment(roles: dict[str, str], said: str) -> None:
    policies = {"a": PolicyConfig(), "b": PolicyConfig()}
    with pytest.raises(ConfigError, match=said):
        check_roles(policies, roles, ("x", "o"), ("agent",))
