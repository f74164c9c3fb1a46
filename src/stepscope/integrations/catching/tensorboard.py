"""TensorBoard's SummaryWriter, of torch and of tensorboardX: scalars, histograms, and what else is written.

Two writers that are open at a time write the same tags in different folders, such as `train` and `val`: values of the
second have its folder's name before their tag.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import CallFollower

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
THINGS = {
    "add_image": ("image", "tag", "img_tensor"),
    "add_images": ("image", "tag", "img_tensor"),
    "add_image_with_boxes": ("image", "tag", "img_tensor"),
    "add_figure": ("figure", "tag", "figure"),
    "add_video": ("video", "tag", "vid_tensor"),
    "add_audio": ("audio", "tag", "snd_tensor"),
    "add_text": ("text", "tag", "text_string"),
    "add_mesh": ("mesh", "tag", "vertices"),
    "add_embedding": ("embedding", "tag", "mat"),
    "add_pr_curve": ("pr_curve", "tag", "predictions"),
    "add_tensor": ("array", "tag", "tensor"),
}
"""Methods for what is no number: kind, and the arguments that are the name and the value."""


class Folders:
    """The folders of the open writers, and the names of their tags."""

    def __init__(self) -> None:
        self.only: Any = None
        """The folder whose tags are names as they are: that of the first writer."""
        self._names: dict[Any, dict[Any, str]] = {}

    def name(self, folder: Any, tag: Any) -> Any:
        """Return the name of a tag: the same object each time, which the recorder finds faster."""
        if self.only is None:
            self.only = folder
        if folder == self.only:
            return tag
        names = self._names.setdefault(folder, {})
        if tag not in names:
            names[tag] = f"{os.path.basename(os.path.normpath(str(folder)))}/{tag}"
        return names[tag]

    def close(self, folder: Any) -> None:
        """Forget the folder of a writer that was closed."""
        self._names.pop(folder, None)
        if folder == self.only:
            self.only = None


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of SummaryWriter."""
    writer, is_x = module.SummaryWriter, module.__name__.startswith("tensorboardX")
    source, attribute = ("tensorboardX", "logdir") if is_x else ("tensorboard", "log_dir")
    record, write, folders = caught.recorder(source), caught.write, Folders()
    latest, stood_for = caught.source(source).latest, caught.source(source).stood_for

    def folder_of(writer: Any) -> Any:
        return getattr(writer, attribute, None)

    def add_scalar(original: Any) -> Any:
        def call(self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *more: Any, **named: Any) -> Any:
            try:
                if more or named:
                    return original(self, tag, scalar_value, global_step, *more, **named)
                return original(self, tag, scalar_value, global_step)
            finally:
                # The usual case stays in this function: each further one that a training has to load into its caches
                # costs more than what it does.
                is_plain = type(tag) is str and type(scalar_value) is float and type(global_step) is int
                folder = getattr(self, attribute, None)
                if is_plain and folder == folders.only and tag in latest and not stood_for:  # no other source has it
                    latest[tag] = scalar_value
                    write({tag: scalar_value}, global_step)
                elif type(tag) is str:
                    record({folders.name(folder, tag): scalar_value}, 0 if global_step is None else global_step)

        return call

    def add_scalars(given: dict[str, Any]) -> None:
        main = folders.name(folder_of(given["self"]), given["main_tag"])
        record({f"{main}/{key}": value for key, value in given["tag_scalar_dict"].items()}, given["global_step"] or 0)

    def add_histogram(given: dict[str, Any]) -> None:
        name = folders.name(folder_of(given["self"]), given["tag"])
        caught.note(source, name, given["values"], given["global_step"] or 0)

    patches.wrap(writer, "add_scalar", add_scalar, must=True)
    follower = CallFollower(caught, source, patches)
    follower.follow(writer, "add_scalars", add_scalars)
    follower.follow(writer, "add_histogram", add_histogram)
    follower.follow(writer, "add_hparams", lambda given: caught.config(source, given["hparam_dict"]))
    follower.follow(writer, "close", lambda given: folders.close(folder_of(given["self"])))
    follower.things(writer, THINGS, step="global_step")
