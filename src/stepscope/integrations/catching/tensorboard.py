"""TensorBoard's SummaryWriter, of torch and of tensorboardX: scalars, histograms, and what else is written.

Two writers that are open at a time write the same tags in different folders, such as `train` and `val`: values of the
second have its folder's name before their tag.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import Follower

if TYPE_CHECKING:
    from collections.abc import Callable
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
    """The folders of the open writers, and what stands before the tags of each."""

    def __init__(self) -> None:
        self.prefixes: dict[Any, str] = {}

    def add(self, folder: Any) -> str:
        """Return what stands before the tags of a folder's writer: nothing if it is the only one."""
        prefix = f"{os.path.basename(os.path.normpath(str(folder)))}/" if self.prefixes else ""
        return self.prefixes.setdefault(folder, prefix)

    def close(self, folder: Any) -> None:
        """Forget the folder of a writer that was closed."""
        self.prefixes.pop(folder, None)


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of SummaryWriter."""
    writer = module.SummaryWriter
    source = module.__name__.partition(".")[0].replace("torch", "tensorboard")
    record, folders = caught.recorder(source), Folders()
    folder_of: Callable[[Any], Any] = _x_folder if source == "tensorboardX" else _folder
    prefixes = folders.prefixes

    def prefix_of(self: Any) -> str:
        folder = folder_of(self)
        found = prefixes.get(folder)
        return folders.add(folder) if found is None else found

    def add_scalar(original: Any) -> Any:
        def call(self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *more: Any, **named: Any) -> Any:
            try:
                return original(self, tag, scalar_value, global_step, *more, **named)
            finally:
                record({f"{prefix_of(self)}{tag}": scalar_value}, 0 if global_step is None else global_step)

        return call

    def add_scalars(given: dict[str, Any]) -> None:
        main, step = f"{prefix_of(given['self'])}{given['main_tag']}", given["global_step"]
        record({f"{main}/{key}": value for key, value in given["tag_scalar_dict"].items()}, step or 0)

    def add_histogram(given: dict[str, Any]) -> None:
        name = f"{prefix_of(given['self'])}{given['tag']}"
        caught.note(source, name, given["values"], given["global_step"] or 0)

    patches.wrap(writer, "add_scalar", add_scalar)
    follower = Follower(caught, source, patches)
    follower.follow(writer, "add_scalars", add_scalars)
    follower.follow(writer, "add_histogram", add_histogram)
    follower.follow(writer, "add_hparams", lambda given: caught.config(source, given["hparam_dict"]))
    follower.follow(writer, "close", lambda given: folders.close(folder_of(given["self"])))
    follower.things(writer, THINGS, step="global_step")


def _folder(writer: Any) -> Any:
    return getattr(writer, "log_dir", None)


def _x_folder(writer: Any) -> Any:
    return getattr(writer, "logdir", None)
