"""The little of vhost-user that the lab speaks: how many queues does this backend have?

QEMU's device must have exactly as many; the number is masqd's own affair and may change with it.
"""

import socket
import struct

from .ui import LabError

GET_FEATURES, SET_FEATURES, GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM = 1, 2, 15, 16, 17
F_PROTOCOL_FEATURES = 1 << 30
PROTOCOL_F_MQ = 1 << 0
VERSION, REPLY = 0x1, 0x4
HEADER = struct.Struct("<III")


def queue_count(path):
    """Asks the backend that listens on `path`, as a front end that comes and goes."""
    try:
        with socket.socket(socket.AF_UNIX) as backend:
            backend.settimeout(5)
            backend.connect(path)
            if not _ask(backend, GET_FEATURES) & F_PROTOCOL_FEATURES:
                raise LabError(f"the vhost-user backend at {path} has no protocol features")
            _tell(backend, SET_FEATURES, F_PROTOCOL_FEATURES)
            _tell(backend, SET_PROTOCOL_FEATURES, _ask(backend, GET_PROTOCOL_FEATURES) & PROTOCOL_F_MQ)
            return _ask(backend, GET_QUEUE_NUM)
    except OSError as error:
        raise LabError(f"cannot talk to the vhost-user backend at {path}: {error}") from None


def _tell(backend, request, value):
    backend.sendall(HEADER.pack(request, VERSION, 8) + struct.pack("<Q", value))


def _ask(backend, request):
    backend.sendall(HEADER.pack(request, VERSION, 0))
    answer = b""
    while len(answer) < HEADER.size + 8:
        part = backend.recv(HEADER.size + 8 - len(answer))
        if not part:
            raise LabError("the vhost-user backend closed the connection")
        answer += part
    kind, flags, size = HEADER.unpack_from(answer)
    if kind != request or not flags & REPLY or size != 8:
        raise LabError(f"the vhost-user backend answered {kind} ({size} bytes) to request {request}")
    return struct.unpack_from("<Q", answer, HEADER.size)[0]
