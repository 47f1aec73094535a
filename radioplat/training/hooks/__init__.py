"""Step hooks: what follows the steps of a run, in one ordered list; also users' own."""
