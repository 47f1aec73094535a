"""What a student is worth: kNN, fidelity to each teacher, pictures."""

from radioplat._rooms import make_callable

make_callable(__name__, "radioplat.evaluate.run", "evaluate")
