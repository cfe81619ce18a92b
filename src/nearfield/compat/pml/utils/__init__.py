"""`utils.accuracy_calculator`."""

from nearfield.compat.pml.utils import accuracy_calculator

__all__ = ["accuracy_calculator"]
