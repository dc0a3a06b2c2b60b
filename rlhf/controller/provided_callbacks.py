"""Callbacks that recipes name: stop when an evaluation no longer improves, keep the best weights."""

from __future__ import annotations

import json
import shutil

from rlhf.controller.run import Callback, Run
from rlhf.errors import ConfigError
from rlhf.rollout.evaluation import Evaluation


class Best:
    """The best value so far of one evaluation metric, by its logged name (`eval/reward`, `eval/NAME/pass@8`)."""

    def __init__(self, metric: str, *, greater_is_better: bool = True, min_delta: float = 0.0) -> None:
        self.metric, self._sign, self._min_delta = metric, 1.0 if greater_is_better else -1.0, min_delta
        self.value: float | None = None

    def improves(self, evaluation: Evaluation) -> bool:
        """Whether this evaluation is the best so far; if so, it is remembered. Raises `ConfigError` where it lacks the
        metric."""
        metrics = evaluation.metrics
        if self.metric not in metrics:
            raise ConfigError(f"evaluations lack the metric {self.metric}; they have {', '.join(metrics)}")
        now = metrics[self.metric]
        better = self.value is None or self._sign * (now - self.value) > self._min_delta
        self.value = now if better else self.value
        return better


class EarlyStopping(Callback):
    """Ends the run after `patience` consecutive evaluations in which `metric` did not improve by more than
    `min_delta`."""

    def __init__(
        self, metric: str = "eval/reward", patience: int = 3, min_delta: float = 0.0, greater_is_better: bool = True
    ) -> None:
        self._best = Best(metric, greater_is_better=greater_is_better, min_delta=min_delta)
        self._patience, self._waited = patience, 0

    async def on_train_begin(self, run: Run) -> None:
        run.check_evaluates()
        for _, evaluation in run.evaluations:  # those before a resume
            self._hear(evaluation)

    async def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        self._hear(evaluation)
        if self._waited >= self._patience:
            run.stop(f"{self._best.metric} has not improved on {self._best.value:.4g} for {self._waited} evaluations")

    def _hear(self, evaluation: Evaluation) -> None:
        self._waited = 0 if self._best.improves(evaluation) else self._waited + 1


class BestCheckpoint(Callback):
    """Keeps the weights with the best `metric` of all evaluations as a Hugging Face folder, `best/` in the run folder,
    with `best.json` next to its weights: the version and the value."""

    def __init__(self, metric: str = "eval/reward", greater_is_better: bool = True) -> None:
        self._best = Best(metric, greater_is_better=greater_is_better)

    async def on_train_begin(self, run: Run) -> None:
        run.check_evaluates()
        for _, evaluation in run.evaluations:  # those before a resume
            self._best.improves(evaluation)

    async def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        if not self._best.improves(evaluation):
            return
        run.folder.check()
        fresh, best = run.folder.path / "best.new", run.folder.path / "best"
        shutil.rmtree(fresh, ignore_errors=True)
        await run.export(fresh)
        record = {"version": run.version, "metric": self._best.metric, "value": self._best.value}
        (fresh / "best.json").write_text(json.dumps(record))
        shutil.rmtree(best, ignore_errors=True)
        fresh.rename(best)
