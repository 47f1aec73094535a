import io

from radioplat.tracking.progress import StepProgress


def test_plain_lines_when_the_stream_is_no_terminal():
    out = io.StringIO()
    with StepProgress(5, stream=out, every=0.0, label="distill") as progress:
        for step in range(1, 6):
            progress.update(step, loss=1 / step, images_per_s=12.3)
    lines = out.getvalue().splitlines()
    assert len(lines) == 5 and lines[0].startswith("distill: step 1/5  loss 1.0000  12.3 images/s")
    assert "left" not in lines[0] and "left" in lines[1] and "left" not in lines[-1]  # start-up
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()


def test_few_lines_for_many_steps_and_always_the_last():
    out = io.StringIO()
    with StepProgress(1000, stream=out, every=3600.0) as progress:
        for step in range(1, 501):
            progress.update(step, loss=0.0)
    assert [line.split()[2] for line in out.getvalue().splitlines()] == ["1/1000", "500/1000"]


def test_resumed_run_estimates_from_its_own_steps():
    out = io.StringIO()
    with StepProgress(10, start=8, stream=out, every=0.0) as progress:
        progress.update(8)  # nothing done yet, nothing to estimate from
        progress.update(9)
    first, second = out.getvalue().splitlines()
    assert "left" not in first and "0:00 left" in second


def test_bar_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    with StepProgress(3, stream=out) as progress:
        progress.update(3, loss=0.25)
    assert "3/3" in out.getvalue() and "loss 0.2500" in out.getvalue()
