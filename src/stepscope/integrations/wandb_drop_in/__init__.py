"""A stand-in for the `wandb` package that records locally: one file per noun of its API.

`stepscope.wandb` is the public face. A call never raises into the training, except where scripts rely on it: what needs
a run raises `wandb.Error` before `wandb.init`, as it does there.
"""
