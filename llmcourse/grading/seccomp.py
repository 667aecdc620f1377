"""System calls that no learner's code needs, refused by the kernel to it and all it starts.

A submission has no right, but the kernel's rarely used doors are where rights have been won
before; and some things made here would outlive it, or count as nobody's memory.
"""

import ctypes
import os
import platform
import struct

# Of x86_64 and of aarch64.
REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),  # outlive us
    "memfd_create": (319, 279), "memfd_secret": (447, 447),  # memory that none is told of
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "mount_setattr": (442, 442),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "open_by_handle_at": (304, 265), "swapon": (167, 224), "quotactl": (179, 60),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "syslog": (103, 116),
}  # fmt: skip
MACHINES = {"x86_64": (0, 0xC000003E, 56), "aarch64": (1, 0xC00000B7, 220)}  # and clone
# Sockets within the sandbox only: others are not held back by a network namespace (AF_VSOCK);
# and none with larger buffers, which are the kernel's memory and count as nobody's.
MADE = {"socket": (41, 198), "socketpair": (53, 199)}
SETSOCKOPT = (54, 208)
UNIX, OF_SOCKETS, BUFFERS = 1, 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and both with force
CLONE3 = 435  # takes its flags from memory, where no filter can look
NEW_NAMESPACE = 0x7E020080  # clone's flags for each kind of them
NUMBER, MACHINE, ARGUMENTS = 0, 4, (16, 24, 32)  # offsets in what the kernel shows a filter
LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_ANY, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2


def refuse() -> None:
    """Refuse the calls above to this process for good. Raises OSError where it cannot be."""
    code = program(platform.machine())
    block = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(code) // 8, ctypes.addressof(block))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((NO_NEW_PRIVS, 1, 0, 0, 0), (SET_SECCOMP, FILTER, header, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def program(machine: str) -> bytes:
    """The filter, in the kernel's packet filter language."""
    if machine not in MACHINES:
        raise OSError(f"no filter of system calls is known for {machine}")
    column, audited, clone = MACHINES[machine]
    steps = [
        _step(LOAD, MACHINE),
        _step(JUMP_EQUAL, audited, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER),
        _step(JUMP_FROM, 0x40000000, 0, 1),  # x86's second set of numbers
        _step(RETURN, KILL),
        _step(JUMP_EQUAL, CLONE3, 0, 1),
        _step(RETURN, ERROR | ENOSYS),  # so that the C library falls back to clone
    ]
    for numbers in REFUSED.values():
        steps += [_step(JUMP_EQUAL, numbers[column], 0, 1), _step(RETURN, ERROR | EPERM)]
    for numbers in MADE.values():
        steps += [
            _step(JUMP_EQUAL, numbers[column], 0, 4),
            _step(LOAD, ARGUMENTS[0]),
            _step(JUMP_EQUAL, UNIX, 1, 0),
            _step(RETURN, ERROR | EAFNOSUPPORT),
            _step(RETURN, ALLOW),
        ]
    steps += [
        _step(JUMP_EQUAL, SETSOCKOPT[column], 0, len(BUFFERS) + 5),
        _step(LOAD, ARGUMENTS[1]),
        _step(JUMP_EQUAL, OF_SOCKETS, 0, len(BUFFERS) + 1),
        _step(LOAD, ARGUMENTS[2]),
        *(_step(JUMP_EQUAL, n, len(BUFFERS) - i, 0) for i, n in enumerate(BUFFERS)),
        _step(RETURN, ALLOW),
        _step(RETURN, ERROR | EPERM),
    ]
    steps += [
        _step(JUMP_EQUAL, clone, 0, 3),
        _step(LOAD, ARGUMENTS[0]),
        _step(JUMP_ANY, NEW_NAMESPACE, 0, 1),
        _step(RETURN, ERROR | EPERM),
        _step(RETURN, ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)
