"""The interpreter's settings of a run end with it."""

from __future__ import annotations

import gc
import sys

from rlhf.controller.event_loop_latency import SWITCH_SECONDS, responsive_event_loop


def test_a_run_changes_the_interpreter_only_while_it_lasts() -> None:
    before, frozen, thresholds = sys.getswitchinterval(), gc.get_freeze_count(), gc.get_threshold()
    with responsive_event_loop():
        assert abs(sys.getswitchinterval() - SWITCH_SECONDS) < 1e-5
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold()[2] > thresholds[2]
    assert abs(sys.getswitchinterval() - before) < 1e-5
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds
