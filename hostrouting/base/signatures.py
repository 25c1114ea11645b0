"""The signature of a class whose `__new__` only refuses: that of its `__init__`."""

from __future__ import annotations

from inspect import Signature, signature


class SignatureOfInit:
    """The attribute `__signature__` of such a class; Python 3.10 would show that of `__new__`."""

    def __get__(self, _: object, owner: type) -> Signature:
        whole = signature(owner.__init__)  # type: ignore[misc]  # of the class itself
        _self, *parameters = whole.parameters.values()
        return whole.replace(parameters=parameters)
