"""Steps before a start: ``plan`` prints their results, a run is refused by their problems."""
