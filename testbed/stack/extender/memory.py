"""How memory is kept: lean while a cluster is read, at hand while decisions are made.

A large list comes in pages of a megabyte; by default the C library keeps what the first
of them freed, and grows by a third. So large pieces go back to the kernel at once while
lists are read. A decision needs some pieces of a hundred kilobytes, the request's names
among them, and to have each from the kernel anew would cost a good part of the decision:
so afterwards they stay.
"""

from __future__ import annotations

import gc

from testbed.native import heap

#: Above what one read of a socket takes (asyncio: 256 KiB), which is so used again: to have
#: that from the kernel anew each time is a tenth of all the time. Below a page of a list.
_LEAN_BYTES = 512 << 10
#: A decision's largest pieces are requests and answers.
_KEPT_BYTES = 16 << 20
#: After so many new objects, instead of hundreds.
_SELDOM = 200_000
_USUAL = gc.get_threshold()


def before_lists() -> None:
    """Give back what is large, and seldom look for garbage: a list has none, and to look
    again and again among what a hundred thousand pods left takes as long as reading them."""
    heap.keep(_LEAN_BYTES, 2 * _LEAN_BYTES)
    gc.set_threshold(_SELDOM, *_USUAL[1:])


def after_lists() -> None:
    """Keep what a decision needs; what was read stays, and is not looked at again."""
    gc.set_threshold(*_USUAL)
    gc.collect()
    gc.freeze()
    heap.keep(_KEPT_BYTES, _KEPT_BYTES)
