"""Parts of the demonstration (`benchmarks/demo.py`): its two runs, what the terminal shows, figures, pages."""
