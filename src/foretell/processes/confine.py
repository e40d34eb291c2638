"""Processes: takes from this process what it does not need, for ever: files, processes, network, memory and time.

A process calls :func:`confine` before it opens a file that somebody else made. Each layer holds by itself, and a layer
that the system lacks is left out; :func:`confine` returns the names of those that hold.

    limits      resource limits: memory, processor time, written bytes, open files, no core dump     everywhere
    namespace   a network namespace of its own, without any network                                 Linux, often
    privileges  no capability (root keeps that of reading), no setuid program                       Linux
    landlock    reads and writes only the named files and folders                                   Linux 5.13
    seccomp     no new process or program, no socket, no signal to others, no open file to write    Linux, x86-64, ARM

This file uses only the standard library: it also runs in environments in which foretell is not installed.
"""

import ctypes
import errno
import os
import platform
import signal
import site
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

try:  # now: a confined process may not find it any more
    import resource
except ImportError:  # Windows
    _HAS_LIMITS = False
else:
    _HAS_LIMITS = True

_PDEATHSIG, _NO_NEW_PRIVS = 1, 38  # arguments of prctl
_NEWUSER, _NEWNET, _THREAD = 0x10000000, 0x40000000, 0x00010000  # flags of unshare and clone
_OPEN_FILES = 256
_MORE_CPU_S = 5  # beyond the timeout: the parent ends a slow child first, and says so
# what Python and native libraries read when they start
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime", "/dev/null",
    "/dev/zero", "/dev/urandom", "/dev/random", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/sys/devices/system",
)  # fmt: skip
_state: list[frozenset[str]] = []


@dataclass(frozen=True)
class Confinement:
    """What a confined process may still do; ``None`` is no limit.

    Attributes:
        memory_bytes: Memory that it may allocate (not counting libraries, which are mapped from files).
        address_bytes: Address space in all.
        cpu_s: Processor time.
        file_bytes: The length of a file that it may write.
        readable: Files and folders that it may read, beside Python and the system's libraries; None means all.
        writable: Folders that it may write.
    """

    memory_bytes: int | None = None
    address_bytes: int | None = None
    cpu_s: float | None = None
    file_bytes: int = 0
    readable: Sequence[str] | None = ()
    writable: Sequence[str] = ()


def confined() -> frozenset[str]:
    """The layers that hold for this process; empty if it is not confined."""
    return _state[0] if _state else frozenset()


def confine(what: Confinement, *, sealed: bool = True) -> frozenset[str]:
    """Confine this process and all its future threads; returns the layers that hold.

    Call it before any library starts a thread: threads that already run are not confined. A process whose libraries
    start programs when they are imported leaves out seccomp with ``sealed=False`` and calls :func:`seal` afterwards.
    """
    held = []
    libc = _libc()
    if libc is not None:
        if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            held.append("privileges")
        if _leave_network(libc):
            held.append("namespace")
        _drop_capabilities(libc)
        if _landlock(libc, what):
            held.append("landlock")
    if _limit(what, may_start=not sealed or _can_seal()):
        held.append("limits")
    if libc is not None:
        libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # last: a change of privileges resets it
    _state[:] = [frozenset(held)]
    return seal(may_write=bool(what.writable)) if sealed else _state[0]


def seal(*, may_write: bool) -> frozenset[str]:
    """Take from all threads of this confined process what seccomp can; returns the layers that hold."""
    libc = _libc()
    if libc is not None and _can_seal() and _seal(libc, may_write=may_write):
        _state[:] = [confined() | {"seccomp"}]
    return confined()


def _libc() -> "ctypes.CDLL | None":
    """The C library on Linux; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    with suppress(OSError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        return libc
    return None


def _limit(what: Confinement, *, may_start: bool) -> bool:
    """Set resource limits, for good. Without seccomp, new processes are limited here; threads count as processes."""
    if not _HAS_LIMITS:
        return False
    cpu_s = None if what.cpu_s is None else int(what.cpu_s) + _MORE_CPU_S
    limits = {
        "RLIMIT_DATA": what.memory_bytes,
        "RLIMIT_AS": what.address_bytes,
        "RLIMIT_CPU": cpu_s,
        "RLIMIT_FSIZE": what.file_bytes,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_NPROC": None if may_start else 0,
        "RLIMIT_CORE": 0,
    }
    os.umask(0o077)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is an error, not the end
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if value is None or kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with suppress(OSError, ValueError):  # macOS refuses some
            resource.setrlimit(kind, (value, value))
    return True


def _leave_network(libc: ctypes.CDLL) -> bool:
    """Move to a network namespace of our own, which has no network. Containers often forbid it."""
    if os.geteuid() == 0 and libc.unshare(_NEWNET) == 0:
        return True
    return bool(libc.unshare(_NEWUSER | _NEWNET) == 0)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up all capabilities; root keeps that of reading files of others, which Landlock limits to the named ones."""
    header = struct.pack("=Ii", 0x20080522, 0)
    kept = 1 << 2 if os.geteuid() == 0 else 0  # CAP_DAC_READ_SEARCH
    for wanted in (kept, 0):
        if libc.capset(header, struct.pack("=IIIIII", wanted, wanted, 0, 0, 0, 0)) == 0:
            return


# Landlock: https://docs.kernel.org/userspace-api/landlock.html

_EXECUTE, _WRITE, _READ, _READ_FOLDER, _TRUNCATE = 1, 2, 4, 8, 1 << 14
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # by the version of Landlock
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | 1 << 15
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls


def _landlock(libc: ctypes.CDLL, what: Confinement) -> bool:
    """Allow only the named files and folders."""
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        return False
    rights = max(value for least, value in _RIGHTS.items() if version >= least)
    reading = _EXECUTE | _READ | _READ_FOLDER
    handled = rights if what.readable is not None else rights & ~reading
    fields = [handled]
    if version >= 4:
        fields.append(0b11)  # no TCP: neither bind nor connect
    if version >= 6:
        fields.append(0b11)  # no abstract sockets and no signals to processes outside
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    if rules < 0:
        return False
    try:
        if what.readable is not None:
            for path in (*_SYSTEM, *_python_folders(), *what.readable):
                _allow(libc, rules, path, reading & handled)
        for path in ("/dev/null", *what.writable):
            _allow(libc, rules, path, (rights if path != "/dev/null" else _READ | _WRITE | _TRUNCATE) & handled)
        return bool(libc.syscall(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint(0)) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    """Add a rule for a file or folder; one that does not exist needs none."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, place)
        libc.syscall(_ADD, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint(0))
    finally:
        os.close(place)


def _python_folders() -> Iterable[str]:
    """Where Python, its packages and the libraries of this process lie."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    found = (sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *user, *libraries)
    return {path for path in map(os.path.abspath, filter(None, found)) if path != os.path.sep}


# seccomp: a list of system calls that fail. The numbers differ between processors.

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NEVER = {  # whatever a process may write
    "x86_64": (
        41, 425,  # socket; io_uring_setup, which would get past this list
        101, 310, 311, 438,  # ptrace, process_vm_readv, process_vm_writev, pidfd_getfd
        62, 200, 129, 297, 424,  # kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
        155, 161, 165, 166, 272, 308, 428, 429, 430, 442,  # mounts, roots and namespaces
        248, 249, 250, 298, 321, 323, 303, 304,  # keys, perf events, bpf, userfaultfd, files by handle
        29, 64, 68, 240,  # memory, semaphores and messages that outlive a process
    ),
    "aarch64": (
        198, 425, 117, 270, 271, 438, 129, 130, 138, 240, 424,
        41, 51, 40, 39, 97, 268, 428, 429, 430, 442, 217, 218, 219, 241, 280, 282, 264, 265, 194, 190, 186, 180,
    ),
}  # fmt: skip
# fork, vfork, execve, execveat: libraries that start programs know what to do where there is no such program
_PROGRAMS = {"x86_64": (57, 58, 59, 322), "aarch64": (221, 281)}
_CHANGES = {  # of a process that may write nothing
    "x86_64": (
        85, 87, 263, 82, 264, 316, 83, 258, 84, 86, 265, 88, 266, 133, 259,  # creat, unlink, rename, mkdir, link, mknod
        76, 77, 285, 90, 91, 268, 452, 92, 93, 94, 260,  # truncate, fallocate, chmod, chown
        132, 235, 280, 261, 188, 189, 190, 197, 198, 199, 463, 466,  # times and extended attributes
    ),
    "aarch64": (
        35, 38, 276, 34, 37, 36, 33, 45, 46, 47, 52, 53, 452, 55, 54, 88, 5, 6, 7, 14, 15, 16, 463, 466,
    ),
}  # fmt: skip
_OPENS = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}  # open and openat, and which argument has the flags
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3, _OPENAT2 = 435, 437  # their flags are in memory, which a filter cannot read; libraries fall back without them
_OTHERS = {
    "x86_64": ((234, "pid"), (302, 0)),
    "aarch64": ((131, "pid"), (261, 0)),
}  # tgkill and prlimit: only ourselves
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # system calls of a second interface of x86-64, under other numbers
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of a filter
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _can_seal() -> bool:
    return platform.machine() in _ARCHITECTURES and sys.byteorder == "little" and sys.maxsize > 2**32


def _seal(libc: ctypes.CDLL, *, may_write: bool) -> bool:
    """Refuse system calls for good, in all threads."""
    program = _filter(platform.machine(), os.getpid(), may_write=may_write)
    code = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    call = ctypes.c_long(_SECCOMP[platform.machine()])
    return bool(libc.syscall(call, ctypes.c_uint(1), ctypes.c_uint(1), described) == 0)


def _filter(machine: str, pid: int, *, may_write: bool) -> bytes:
    """The program that the kernel runs at each system call; a rule jumps over the next ones where it does not fit."""
    refused, unknown, absent = (_REFUSE | number for number in (errno.EPERM, errno.ENOSYS, errno.ENOENT))

    def argument(index: int) -> tuple[int, int, int, int]:
        return (_LOAD, 0, 0, 16 + 8 * index)

    lines = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, refused)]
    for number in _NEVER[machine] + (() if may_write else _CHANGES[machine]):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refused)]
    for number in _PROGRAMS[machine]:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, absent)]
    lines += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, unknown)]
    # a rule about an argument returns, whatever it finds: the number of the call is gone then
    lines += [(_EQUAL, 0, 4, _CLONE[machine]), argument(0), (_ANY_BIT, 1, 0, _THREAD)]
    lines += [(_RETURN, 0, 0, absent), (_RETURN, 0, 0, _ALLOW)]
    for number, allowed in _OTHERS[machine]:
        lines += [(_EQUAL, 0, 4, number), argument(0), (_EQUAL, 1, 0, pid if allowed == "pid" else 0)]
        lines += [(_RETURN, 0, 0, refused), (_RETURN, 0, 0, _ALLOW)]
    if not may_write:
        lines += [(_EQUAL, 0, 1, _OPENAT2), (_RETURN, 0, 0, unknown)]
        for number, index in _OPENS[machine]:
            lines += [(_EQUAL, 0, 4, number), argument(index), (_ANY_BIT, 0, 1, _WRITING)]
            lines += [(_RETURN, 0, 0, refused), (_RETURN, 0, 0, _ALLOW)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
