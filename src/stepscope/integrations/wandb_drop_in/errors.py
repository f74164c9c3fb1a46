"""The exceptions that scripts catch by W&B's names."""

from __future__ import annotations


class WandbError(Exception):
    """The base of all of them; `message` is its text."""

    def __init__(self, message: object = "", context: object = None) -> None:
        """Take the text and, as there, a context that nobody reads."""
        super().__init__(message)
        self.message, self.context = str(message), context


class WandbCommError(WandbError):
    """A server could not be reached."""


class AuthenticationError(WandbCommError):
    """A key was refused."""


class WandbUsageError(WandbError):
    """A call that makes no sense."""


class UnsupportedError(WandbUsageError):
    """A feature that does not exist."""


class WandbCoreNotAvailableError(WandbError):
    """A part of the package is missing."""


class ConfigError(WandbError):
    """A setting was changed without `allow_val_change`."""


def before_init(name: str) -> WandbError:
    """Return what is raised for a call that needs a run, when there is none."""
    return WandbError(f"cannot use wandb.{name}: no run has begun; call wandb.init() first")


class BeforeInit:
    """`wandb.config` and `wandb.summary` before `wandb.init`: using one raises `wandb.Error`, as it does there."""

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    def __getattr__(self, key: str) -> object:
        if key.startswith("__"):
            raise AttributeError(key)
        raise before_init(f"{self._name}.{key}")

    def __setattr__(self, key: str, value: object) -> None:
        raise before_init(f"{self._name}.{key}")

    def __getitem__(self, key: object) -> object:
        raise before_init(f"{self._name}[{key!r}]")

    def __setitem__(self, key: object, value: object) -> None:
        raise before_init(f"{self._name}[{key!r}]")


BY_NAME = {
    "Error": WandbError,
    "CommError": WandbCommError,
    "AuthenticationError": AuthenticationError,
    "UsageError": WandbUsageError,
    "UnsupportedError": UnsupportedError,
    "WandbCoreNotAvailableError": WandbCoreNotAvailableError,
}
"""The exceptions by W&B's names."""
