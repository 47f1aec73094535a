"""The steps before a start: a run takes them and is refused, `plan` takes them and prints."""
