"""Entry points of the commands ``radioplat`` and ``radio``, and the exit status of errors."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence

from radioplat.cli.completion import answer_shell
from radioplat.cli.defect import show_defect
from radioplat.cli.parser import TASKS, build_parser
from radioplat.cli.tao_options import with_tao_options
from radioplat.common import terminal
from radioplat.common.imports import missing_module
from radioplat.common.out_of_memory import ran_out
from radioplat.errors import Problem, RadioplatError, Stopped


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``radioplat``.

    Returns:
        Exit status: 0; 1 for a problem that was reported; 70 for a defect of radioplat; 75 after SIGTERM, when the same
        command continues the run; 130 when interrupted. Wrong arguments exit with 2.
    """
    parser = build_parser("radioplat")
    answer_shell(parser)
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help()
        return 0
    args = parser.parse_args(argv)
    return guarded(lambda: args.run(with_tao_options(args)))


def radio(argv: Sequence[str] | None = None) -> int:
    """Run the command ``radio``, which TAO users know: ``distill`` alone."""
    parser = build_parser("radio", {"distill": TASKS["distill"]}, {})
    answer_shell(parser)
    args = parser.parse_args(argv)
    return guarded(lambda: args.run(with_tao_options(args)))


# Errors of the operating system that the user can resolve, with advice.
_ADVICE = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        "Free some space there; the same command continues from the last checkpoint.",
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Use a path that you may read and write, or change its permissions."),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        "Use another path: one of its parts is a file instead of a folder, or the reverse, or the name is too long.",
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Allow more open files: ulimit -n 65536."),
}


# So many collections of the middle generation for a full one, which looks at all objects of all modules; for the whole
# command. With Python's own 10 there are several while a task is imported.
_BEFORE_FULL = 100


def guarded(action: Callable[[], object]) -> int:
    """Run ``action``, show an error that ends it as a message, and return the exit status (docs/train/workers.md)."""
    gc.set_threshold(*gc.get_threshold()[:2], _BEFORE_FULL)
    try:
        status = action()
    except RadioplatError as error:
        terminal.show_error(error)
        return 1
    except ModuleNotFoundError as error:
        if (missing := missing_module(error)) is None:
            return show_defect(error)
        terminal.show_error(RadioplatError(missing))
        return 1
    except BrokenPipeError:  # whoever reads our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _ADVICE:
            return show_defect(error)
        problem = Problem(f"{error.strerror}", str(error.filename or "disk"), _ADVICE[error.errno])
        terminal.show_error(RadioplatError(problem))
        return 1
    except Stopped as stopped:
        terminal.note(f"exit status {stopped.code}: {stopped}")
        return stopped.code
    except KeyboardInterrupt:
        terminal.note("interrupted; run the same command again to continue from the last checkpoint")
        return 130
    except Exception as error:
        if not ran_out(error):
            return show_defect(error)
        message = " ".join(f"out of memory. {error}".split()).rstrip(".")
        terminal.show_error(RadioplatError(message, hint="Lower batch sizes or the number of workers."))
        return 1
    return status if isinstance(status, int) else 0
