"""Methods of other packages: by ``module:Class``, or by the name under which one offers them."""

from importlib import import_module

from smoothtune.catalog import GROUP, offered_methods
from smoothtune.core.regularizer import Regularizer
from smoothtune.methods import METHODS


def find_method(name: str) -> type[Regularizer]:
    """The class of a method. Code of others is imported: only for names that the user gave.

    Args:
        name: of a method of this package; ``my_package.module:MyMethod``; or an entry point of the
            group ``smoothtune.methods``.

    Raises:
        ValueError: there is no such method, or its module cannot be imported.
    """
    if name in METHODS:
        return METHODS[name]
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            cls = getattr(import_module(module), attribute)
        else:
            cls = offered_methods()[name].load()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"no module {error.name!r} is installed; the current folder is not searched unless "
            "PYTHONPATH names it"
        ) from error
    except KeyError as error:
        raise ValueError(f"no installed package offers it as an entry point of {GROUP}") from error
    except Exception as error:  # the module's own code may raise anything
        raise ValueError(f"cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Regularizer)):
        raise ValueError(f"is {cls!r}, not a class of methods, a subclass of Regularizer")
    if not hasattr(cls, "name") or "__pydantic_fields__" not in vars(cls):
        raise ValueError('needs @method("its_name") above it')
    return cls
