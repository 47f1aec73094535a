"""`radioplat fork`: several runs that go on from one step of a run, with other values of fields."""
