"""What interrupts a step: compilations by torch.compile, through Dynamo's callbacks, and garbage collections."""

from __future__ import annotations

import gc
import inspect
import sys
from time import monotonic_ns
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.integrations.torch.patches import Patches
from stepscope.recorder import automatic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.core.after_import import AfterImport
    from stepscope.integrations.torch.root_modules import Roots
    from stepscope.integrations.torch.timeline import Timeline

CALLBACKS, FRAMES = "torch._dynamo.callback", "torch._dynamo.eval_frame"
OURS = ("stepscope.integrations.", "stepscope.recorder.", "stepscope.core.after_import")
OLDEST = 2
"""Generation whose collections take long enough to matter: younger ones take microseconds."""


class Compilations:
    """The callbacks, once Dynamo is loaded."""

    def __init__(self, timeline: Timeline, roots: Roots) -> None:
        """Charge to `timeline`; `roots` ignores modules that a compiler creates."""
        self._timeline, self._roots = timeline, roots
        self._charge = timeline.charge(automatic.COMPILE)
        self._handler: Any = None
        self._begun: list[tuple[bool, int]] = []
        self._patches = Patches()

    def attach(self, imports: AfterImport) -> None:
        """Wait for Dynamo, which a program without compilation never loads."""
        imports.call(FRAMES, leave_alone)
        imports.call(CALLBACKS, self._register)

    def detach(self) -> None:
        """Remove the callbacks."""
        self._patches.restore()
        handler, self._handler = self._handler, None
        if handler is None:
            return
        for callbacks, own in ((handler.start_callbacks, self._start), (handler.end_callbacks, self._end)):
            if own in callbacks:
                callbacks.remove(own)

    def _register(self, module: ModuleType) -> None:
        self._handler = module.callback_handler
        self._install()
        self._patches.wrap(self._handler, "clear", self._remembered)

    def _install(self) -> None:
        if self._start not in self._handler.start_callbacks:
            self._handler.register_start_callback(self._start)
            self._handler.register_end_callback(self._end)

    def _remembered(self, clear: Callable[[], None]) -> Callable[[], None]:
        """Install the callbacks again after torch._dynamo.reset(), which removes them all."""

        def call() -> None:
            try:
                clear()
            finally:
                if self._handler is not None:
                    self._install()

        return call

    def _start(self, *_: Any) -> None:
        timeline = self._timeline
        if not timeline.traced:
            if timeline.quiet:  # from now on hooks stay in place: compiled code is guarded by them
                timeline.silenced(False)  # noqa: FBT003 - whether a quiet span begins
            timeline.traced = True
            timeline.compiled()
            timeline.settle()
        self._roots.ignored += 1
        self._begun.append((timeline.active and self._charge.begin(), monotonic_ns()))

    def _end(self, *given: Any) -> None:
        if not self._begun:
            return
        self._roots.ignored -= 1
        begun, start = self._begun.pop()
        if begun:
            self._charge.end()
        if self._timeline.active:
            details = given[0] if given else None
            which = str(getattr(details, "compile_id", ""))
            trigger = getattr(getattr(details, "callback_trigger", None), "name", "")
            again = which.partition("/")[2].partition("_")[0] not in ("", "0")
            seconds = (monotonic_ns() - start) / 1e9
            self._timeline.run.own_event("compile", id=which, trigger=trigger, recompiled=again, seconds=seconds)


def leave_alone(frames: ModuleType) -> None:
    """Tell Dynamo not to compile our own functions, which it would do between graphs."""
    skip = getattr(frames, "skip_code", None)
    if skip is None:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and isinstance(module, ModuleType):
            for code in _codes(module):
                skip(code)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of every function of a module, including nested ones."""
    todo: list[CodeType] = []
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        functions = [value] if isinstance(value, FunctionType) else []
        if inspect.isclass(value):
            functions = [item for item in vars(value).values() if isinstance(item, FunctionType)]
        todo += [inspect.unwrap(function).__code__ for function in functions]
    while todo:
        code = todo.pop()
        yield code
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


class Garbage:
    """The collector's callback, which charges long collections to `timeline`."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._charge = timeline.charge(automatic.GARBAGE)
        self._begun = False

    def attach(self) -> None:
        """Install it."""
        gc.callbacks.append(self._collect)

    def detach(self) -> None:
        """Remove it."""
        if self._collect in gc.callbacks:
            gc.callbacks.remove(self._collect)

    def _collect(self, moment: str, facts: dict[str, Any]) -> None:
        if facts["generation"] < OLDEST:
            return
        if moment == "start":
            timeline = self._timeline
            self._begun = timeline.active and not timeline.quiet and self._charge.begin()
        elif self._begun:
            self._begun = False
            self._charge.end()
