"""When to call for help, and whom: rules, their state, and notification."""
