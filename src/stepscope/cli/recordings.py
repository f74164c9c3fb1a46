"""Old import path of `stepscope.sources.groups.group_of`."""

from stepscope.sources.groups import group_of

__all__ = ["group_of"]
