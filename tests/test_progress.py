"""Progress without a terminal: a line every ten seconds, and a time left that can be believed."""

import logging

from softperm import progress


def test_the_time_left_is_told_once_a_hundredth_of_the_work_is_done(monkeypatch, caplog):
    clock = iter([0.0, 20.0, 40.0, 45.0, 60.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: False, raising=False)
    with caplog.at_level(logging.INFO, "softperm"), progress.progress_bars() as report:
        for done in (0, 5, 100, 150, 400):  # the fourth comes too early after the third
            report("training", done, 1000)
    assert caplog.messages == [
        "training: 5 of 1,000 (0%)",
        "training: 100 of 1,000 (10%), about 6 min 0 s left",
        "training: 400 of 1,000 (40%), about 1 min 30 s left",
    ]
