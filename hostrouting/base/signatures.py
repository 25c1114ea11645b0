"""The signature of a class whose `__new__` only refuses: that of its `__init__`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from inspect import Signature


class SignatureOfInit:
    """The attribute `__signature__` of such a class; Python 3.10 would show that of `__new__`."""

    def __get__(self, _: object, owner: type) -> Signature:
        from inspect import signature

        whole = signature(owner.__init__)  # type: ignore[misc]  # of the class itself
        _self, *parameters = whole.parameters.values()
        return whole.replace(parameters=parameters)
