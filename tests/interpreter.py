"""Triton's interpreter, at half of its price."""

from functools import cache


def patch_once_a_launch():
    """Triton's interpreter puts functions of its own into `triton.language` before a kernel begins, and the
    same ones again at every call of a function inside of it: half of the time that a kernel takes. Nothing
    takes them out before the kernel has ended, so that once for each set of modules is enough."""
    try:
        from triton.runtime import interpreter
        from triton.runtime.interpreter import GridExecutor, _LangPatchScope, _patch_lang
    except ImportError:  # no Triton for this platform, or one that works otherwise
        return
    launch = GridExecutor.__call__
    modules = (interpreter.tl, interpreter.tl.core)
    patched = set()

    @cache
    def seen_by(function):
        return tuple(any(module is x for x in function.__globals__.values()) for module in modules)

    def patch_if_needed(function):
        if seen_by(function) in patched:
            return _LangPatchScope()  # with nothing to take out
        scope = _patch_lang(function)
        patched.add(seen_by(function))
        return scope

    def launch_anew(self, *arguments, **options):
        patched.clear()
        try:
            return launch(self, *arguments, **options)
        finally:
            patched.clear()

    interpreter._patch_lang, GridExecutor.__call__ = patch_if_needed, launch_anew
