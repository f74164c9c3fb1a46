"""What frameworks call: one file per framework and per noun that it needs."""
