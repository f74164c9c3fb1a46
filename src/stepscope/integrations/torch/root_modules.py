"""Forward passes of the outermost modules that a program calls, whatever it calls its models.

Every module that is created is remembered, weakly. The outermost of the new ones get two hooks; a module that holds
others but is never called itself (a Lightning module, a pair of networks) passes its hooks on to its children. A global
hook would be simpler, but it runs for every layer, and a compiled region would be traced through it.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections import deque
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import torch

from stepscope.integrations.torch.timeline import compiling
from stepscope.recorder.automatic import BITS, CODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.integrations.torch.patches import Patches
    from stepscope.integrations.torch.timeline import Timeline

FORWARD = CODES["forward"]
SETTLING = 4
"""Steps after a change in which uncalled roots pass their hooks to their children."""
MOST_ROOTS = 200
MOST_WAIT = 1024
"""Maximum steps between two searches for new modules, in a program that keeps creating them."""


class Root:
    """The hooks of one outermost module."""

    __slots__ = (
        *("__weakref__", "_begun", "_hooks", "_inner", "_is_on", "_outer", "_timeline"),
        *("called", "depth", "module", "trained"),
    )

    def __init__(self, timeline: Timeline, module: Any, depth: int = 0) -> None:
        """Hook `module`, which is `depth` levels below an uncalled one."""
        self._timeline, self.depth = timeline, depth
        self.module: Callable[[], Any] = weakref.ref(module)
        self.called = self.trained = False
        self._begun: Any = None
        self._outer: Any = None
        self._hooks: tuple[int, ...] = ()
        self._is_on = False
        self._inner: Any = None

    def hook(self) -> None:
        """Install the hooks; a module compiled in place is called through its own compiled function."""
        module = self.module()
        if module is None or self._is_on:
            return
        self._is_on = True
        inner = getattr(module, "_compiled_call_impl", None)
        if inner is not None:
            self._inner = inner
            module._compiled_call_impl = _Compiled(self, inner)  # noqa: SLF001 - where module.compile() keeps it
        elif self._hooks:  # again, under their old numbers: compiled code is guarded by those
            before, after = self._hooks
            module._forward_pre_hooks[before] = self.before  # noqa: SLF001 - where torch keeps them
            module._forward_pre_hooks.move_to_end(before, last=False)  # noqa: SLF001 - as above
            module._forward_hooks[after] = self.after  # noqa: SLF001 - as above
            module._forward_hooks_always_called[after] = True  # noqa: SLF001 - as above
        else:
            first = module.register_forward_pre_hook(self.before, prepend=True)
            last = module.register_forward_hook(self.after, always_call=True)
            self._hooks = (first.id, last.id)

    def unhook(self) -> None:
        """Remove them."""
        module, inner, self._inner = self.module(), self._inner, None
        if module is None or not self._is_on:
            return
        self._is_on = False
        if inner is not None:
            if isinstance(module._compiled_call_impl, _Compiled):  # noqa: SLF001 - as above
                module._compiled_call_impl = inner  # noqa: SLF001 - as above
            return
        first, last = self._hooks
        module._forward_pre_hooks.pop(first, None)  # noqa: SLF001 - as above
        module._forward_hooks.pop(last, None)  # noqa: SLF001 - as above
        module._forward_hooks_always_called.pop(last, None)  # noqa: SLF001 - as above

    def before(self, module: Any, args: Any) -> None:
        """Open the phase."""
        timeline = self._timeline
        if timeline.fast and module.training and self._begun is None and get_ident() == timeline.thread:
            timeline.add(monotonic_ns() << BITS | FORWARD)
            self._begun, self._outer, timeline.left = True, timeline.left, self
            self.called = True
        else:
            self._before(timeline, module, args)

    def after(self, module: Any, args: Any, output: Any) -> None:  # noqa: ARG002 - the signature of the hook
        """Close the phase."""
        timeline = self._timeline
        if timeline.fast and self._begun is True and timeline.left is self:
            timeline.add(monotonic_ns() << BITS)
            self._begun, timeline.left = None, self._outer
        else:
            self._after(timeline)

    def _before(self, timeline: Timeline, module: Any, args: Any) -> None:  # noqa: ARG002 - the arguments leave no mark
        if (timeline.traced and compiling()) or timeline.quiet or not timeline.active:
            return
        start = monotonic_ns() if timeline.timing else 0
        charge = timeline.forward
        if torch.is_grad_enabled():
            if timeline.span is not None and module.training:
                timeline.train()
            self.trained = True
            timeline.steps.start()
        elif not module.training:
            charge = self._evaluating(timeline)
        if timeline.span is None and self._begun is None and charge.begin():
            self._begun, self._outer, timeline.left = charge, timeline.left, self
            if timeline.device is not None:
                timeline.device.mark("forward")
        self.called = True
        if start:
            timeline.cost(monotonic_ns() - start)

    def _after(self, timeline: Timeline) -> None:
        if (timeline.traced and compiling()) or self._begun is None or timeline.left is not self:
            return
        start = monotonic_ns() if timeline.timing else 0
        charge, self._begun, timeline.left = self._begun, None, self._outer
        (timeline.forward if charge is True else charge).end()
        if timeline.device is not None:
            timeline.device.mark()
            timeline.phase_ended("forward")
        if start:
            timeline.cost(monotonic_ns() - start)

    def _evaluating(self, timeline: Timeline) -> Any:
        """Return the phase of a pass without gradients in evaluation mode; a teacher's is not an evaluation."""
        if not self.trained:
            return timeline.forward
        iterator = timeline.fresh() if timeline.fresh is not None else None
        if iterator is not None:  # a loader of which no batch was trained on yet
            timeline.fresh = None
            iterator._stepscope_evaluates = True  # noqa: SLF001 - a mark of ours on torch's iterator
            timeline.keeper.unfetch()
            timeline.evaluate(iterator)
        else:
            timeline.pause()
        return timeline.evaluation

    def forget(self) -> None:
        """Handle an interrupt that ended the pass without its hook."""
        self._begun = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Root:
        """Return itself: a copied model (an average of weights) shares these hooks."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a hook that does nothing."""
        return _Nothing, ()


class _Nothing:
    """The hook in a model that was pickled with it."""

    def before(self, *_: Any) -> None:
        """Do nothing."""

    after = before


class _Compiled:
    """The compiled function of a module that was compiled in place, between the hooks."""

    def __init__(self, root: Root, inner: Any) -> None:
        self._root, self.inner = root, inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        root = self._root
        module = root.module()
        root.before(module, args)
        try:
            return self.inner(*args, **kwargs)
        finally:
            root.after(module, args, None)


class Roots:
    """The known outermost modules, and new ones as they appear."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._new: deque[weakref.ref[Any]] = deque(maxlen=100_000)
        self._roots: dict[int, Root] = {}
        self._settling = 0
        self._wait, self._skipped = 1, 0
        self._backwards = 0
        self.ignored = 0
        """Reasons to remember nothing: compilations that are running."""
        self.troubles: list[str] = []

    @property
    def modules(self) -> list[Any]:
        """The modules that have hooks."""
        return [module for root in self._roots.values() if (module := root.module()) is not None]

    def attach(self, patches: Patches) -> None:
        """Remember every module that is created, copied or unpickled from now on."""
        for name in ("__init__", "__setstate__"):
            patches.wrap(torch.nn.Module, name, self._remembering)
        patches.wrap(torch.nn.Module, "eval", self._resting)
        patches.wrap(torch.jit, "script", self._hiding)
        patches.wrap(torch, "compile", self._moving_out)
        patches.wrap(torch.nn.Module, "compile", self._compiling)
        self.hook()

    def suspend(self) -> None:
        """Remove all hooks."""
        for root in self._roots.values():
            root.unhook()

    def detach(self) -> None:
        """Remove all hooks and forget every module."""
        self.suspend()
        self._roots.clear()
        self._new.clear()

    def add(self, module: Any) -> None:
        """Hook a module that the user passes, or the compiled module around it."""
        self._new.append(weakref.ref(_compiled_around(module)))
        self.look()

    def _remembering(self, original: Any) -> Any:
        new, timeline = self._new, self._timeline

        def make(module: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(module, *args, **kwargs)
            if not compiling() and timeline.active and not self.ignored:
                new.append(weakref.ref(module))
            return made

        return make

    def _resting(self, original: Any) -> Any:
        timeline = self._timeline

        def evaluating(module: Any) -> Any:
            if timeline.quiet and not (timeline.traced and compiling()):
                timeline.pause()  # evaluation passes are measured: the hooks must be installed
            if not timeline.traced:
                timeline.evaluations()
            return original(module)

        return evaluating

    def _hiding(self, original: Any) -> Any:
        def script(*args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
            with self.hidden():
                return original(*args, _frames_up=_frames_up + 1, **kwargs)

        return script

    def _moving_out(self, original: Any) -> Any:
        """Move the hooks of a module to the compiled one around it: inside they would become part of the graph."""

        def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001 - torch's name for it
            made = original(*args, **kwargs)
            if isinstance(made, torch.nn.Module) and self._timeline.active and not compiling():
                self.look()
            return made

        return compile

    def _compiling(self, original: Any) -> Any:
        """Remove the hooks of a module that is compiled in place, and put them around its compiled function."""

        def compile(module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: A001 - torch's name for it
            with self.hidden():
                original(module, *args, **kwargs)

        return compile

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the hooks meanwhile: a module that is saved or converted must be the user's own."""
        self.suspend()
        try:
            yield
        finally:
            if not self._timeline.quiet:
                self.hook()

    def hook(self) -> None:
        """Install the hooks of all known roots."""
        for root in self._roots.values():
            root.hook()

    def step(self) -> None:
        """Find new modules, and let uncalled roots pass their hooks to their children."""
        if self._settling:
            self._settle()
        self._backwards = self._timeline.backwards
        if self._new:
            self._skipped += 1
            if self._skipped >= self._wait:
                self._skipped = 0
                self._wait = 1 if self.look() else min(self._wait * 2, MOST_WAIT)

    def look(self) -> bool:
        """Hook the outermost of the modules created since the last call; return whether there were any."""
        made = {id(module): module for reference in self._new if (module := reference()) is not None}
        self._new.clear()
        held = {id(child) for module in made.values() for child in _children(module)}
        outer = [module for key, module in made.items() if key not in held and _is_callers(module)]
        if not outer:
            return False
        known = {id(part) for module in self.modules for part in _parts(module)}
        found = [module for module in outer if id(module) not in known]
        for module in found:
            self._hook(module)
        return bool(found)

    def _hook(self, module: Any, depth: int = 0) -> None:
        if len(self._roots) >= MOST_ROOTS or id(module) in self._roots:
            return
        if _only_holds_others(module):
            for child in _children(module):
                self._hook(child, depth)
            return
        inside = {id(part) for part in _parts(module)} if depth == 0 else set()
        for key in [key for key in self._roots if key in inside or self._roots[key].module() is None]:
            self._roots.pop(key).unhook()
        root = Root(self._timeline, module, depth)
        try:
            root.hook()
        except (AttributeError, RuntimeError, TypeError) as error:
            self.troubles.append(f"{type(module).__name__}: {error}"[:200])
            return
        self._roots[id(module)] = root
        self._settling = SETTLING

    def _settle(self) -> None:
        if self._timeline.traced:  # a compiled region does not show what it calls, and is guarded by hooks in it
            self._settling = 0
        if self._timeline.backwards == self._backwards or not self._settling:
            return
        self._settling -= 1
        for root in list(self._roots.values()):
            module = root.module()
            if module is None:
                continue
            if root.called:
                for part in list(_parts(module))[1:]:
                    if id(part) in self._roots:
                        self._roots.pop(id(part)).unhook()
            elif root.depth < SETTLING - 1 and any(part.requires_grad for part in module.parameters()):
                settling = self._settling
                for child in _children(module):
                    self._hook(child, root.depth + 1)
                self._settling = settling


def _children(module: Any) -> list[Any]:
    return [child for child in module.__dict__.get("_modules", {}).values() if child is not None]


def _parts(module: Any) -> Iterator[Any]:
    try:
        yield from module.modules()
    except (AttributeError, TypeError, RuntimeError):  # half built, or a wrapper without that attribute
        yield module


def _only_holds_others(module: Any) -> bool:
    """Return whether a module has no forward; a compiled module has one of its own, not of its class."""
    return getattr(type(module), "forward", None) is torch.nn.Module.forward and "forward" not in vars(module)


def _compiled_around(module: Any) -> Any:
    """Return the module that `torch.compile` has put around this one, or around its parent; else itself."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    wrapper = getattr(dynamo, "OptimizedModule", None)
    if wrapper is None:
        return module
    made = (item for item in gc.get_objects() if type(item) is wrapper)  # they are in no list that can be searched
    return next((item for item in made if any(part is module for part in _parts(item))), module)


def _is_callers(module: Any) -> bool:
    """Return whether a program may call a module: not a compiler's graph, nor a half-built module."""
    return "_modules" in module.__dict__ and not isinstance(module, torch.fx.GraphModule)
