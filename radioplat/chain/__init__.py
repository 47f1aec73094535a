"""``radioplat compress``: the tasks of compression one after another, with gates between them."""
